"""The names users import: complete, sorted, real, and typed."""

import ast
from pathlib import Path

import headgate


def _typed_names() -> set[str]:
    """What a type checker sees: the imports under TYPE_CHECKING."""
    tree = ast.parse(Path(headgate.__file__).read_text())
    block = next(
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(headgate, name) is not None for name in headgate.__all__)


def test_the_list_is_sorted_and_what_type_checkers_see_is_what_runs() -> None:
    assert headgate.__all__ == sorted(headgate.__all__)
    assert set(headgate.__all__) == _typed_names() | {"__version__"}
    assert set(headgate._HOME_OF) == _typed_names()


def test_every_error_a_caller_can_meet_is_public() -> None:
    errors = __import__("headgate.core.errors", fromlist=["x"])
    tree = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert set(tree) <= set(headgate.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(headgate, "nobody")


def test_public_classes_and_functions_have_docstrings() -> None:
    undocumented = [
        name
        for name in headgate.__all__
        if not name.startswith("_")
        and callable(getattr(headgate, name))
        and not getattr(headgate, name).__doc__
    ]
    assert undocumented == []
