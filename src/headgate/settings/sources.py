"""Where settings come from: a file, a mapping, or nowhere. Either way they end up as one plain tree."""

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final

from headgate.settings.findings import Findings
from headgate.settings.places import TOP, Place
from headgate.settings.scalars import MOST_DIGITS, sort_of
from headgate.settings.strict_yaml import MOST_DEPTH, Unreadable, read_yaml, refuse_key

DEFAULT_FILE: Final = "headgate.yaml"
MOST_BYTES: Final = 1_000_000


def read_source(
    source: Mapping[str, Any] | str | os.PathLike[str] | None, findings: Findings
) -> dict[str, Any]:
    """The tree of a mapping or a file; of `./headgate.yaml`, if there is one, when no source is named."""
    if isinstance(source, Mapping):
        return _plain_mapping(source, TOP, findings)
    path = Path(DEFAULT_FILE if source is None else source)
    tree = _tree_of(path, _text_of(path, findings, required=source is not None), findings)
    if isinstance(tree, dict):
        return tree
    if tree is not None:
        findings.add(TOP, f"must be a mapping, not {sort_of(tree)}", tail=str(path))
    # Without a tree nothing that comes after could be judged.
    findings.refuse()
    return {}


def _tree_of(path: Path, text: str, findings: Findings) -> Any:
    try:
        return read_yaml(text, findings)
    except Unreadable as error:
        findings.add(TOP, str(error), tail=str(path))
    return None


def _text_of(path: Path, findings: Findings, *, required: bool) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) <= MOST_BYTES:
            return content.decode("utf-8-sig")
        mistake = f"the file is larger than {MOST_BYTES:,} bytes"
    except FileNotFoundError:
        if not required:
            return ""
        mistake = "there is no such file"
    except UnicodeDecodeError as error:
        mistake = f"the file is not UTF-8 text (byte {error.start})"
    except (OSError, ValueError) as error:
        mistake = f"the file cannot be read: {getattr(error, 'strerror', None) or error}"
    findings.add(TOP, mistake, tail=str(path))
    return ""


def _plain(value: Any, place: Place, findings: Findings) -> Any:
    """A copy made of nothing but dicts, lists and scalars."""
    if len(place) > MOST_DEPTH:
        findings.reject(place, f"nested more than {MOST_DEPTH} levels deep")
        return None
    match value:
        case Mapping():
            return _plain_mapping(value, place, findings)
        case list() | tuple():
            return [_plain(inner, (*place, index), findings) for index, inner in enumerate(value)]
        case PurePath():
            return str(value)
        case _:
            return _plain_scalar(value, place, findings)


def _plain_scalar(value: Any, place: Place, findings: Findings) -> Any:
    if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
        findings.reject(place, "is too large a number")
    elif isinstance(value, str | int | float | None):
        return value
    else:
        findings.reject(place, f"must be plain data, not of type {type(value).__name__}")
    return None


def _plain_mapping(mapping: Mapping[Any, Any], place: Place, findings: Findings) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        inside = (*place, str(key))
        if not isinstance(key, str):
            refuse_key(inside, findings)
        values.setdefault(str(key), _plain(value, inside, findings))
    return values
