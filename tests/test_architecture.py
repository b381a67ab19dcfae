"""The house rules that a linter cannot say: arrows cover every room, files stay small, no drawers."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headgate"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST_MODULE = 460
LONGEST_FUNCTION = 60


def _contracts() -> list[dict[str, list[str]]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]  # type: ignore[no-any-return]


def test_the_arrows_name_every_room() -> None:
    """A new room must be given its place before anything imports it."""
    rooms = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    named = {name for layer in _contracts()[0]["layers"] for name in layer.replace("|", " ").split()}
    assert rooms - {"__init__", "__main__", "__pycache__", "py"} == named


def test_every_room_but_wiring_and_the_front_is_kept_from_naming_providers() -> None:
    # Applications have a contract of their own: through the public names everything leads to everything.
    above = {"cli", "doctor", "wiring", "apps"}
    forbidden = next(contract for contract in _contracts() if "Only wiring" in str(contract["name"]))
    layers = [name for layer in _contracts()[0]["layers"] for name in layer.replace("|", " ").split()]
    expected = {
        f"headgate.{name}"
        for name in layers
        if name not in above | {"providers", "stores", "transport", "formats", "core"}
    }
    assert set(forbidden["source_modules"]) == expected


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_is_about_one_thing(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LONGEST_MODULE
    assert path.stem not in {"utils", "util", "common", "helpers", "helper", "misc", "manager"}
    tree = ast.parse(text)
    if path.name != "__main__.py":
        assert ast.get_docstring(tree), "a module's docstring says what it knows"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, f"{node.name} is too long"


def test_importing_headgate_alone_loads_none_of_its_rooms() -> None:
    """`import headgate` must stay cheap, and core usable without the rest."""
    code = "import sys, headgate; print([name for name in sys.modules if name.startswith('headgate.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_committed_file_names_a_registry_or_a_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".lock", ".toml", ".in"} or path.name == "Makefile":
            text = path.read_text()
            assert "://" not in text, name
            assert "/root/" not in text, name
