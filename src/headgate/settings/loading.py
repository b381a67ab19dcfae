"""Settings from wherever they are: read, overridden, filled in, checked, and refused with all their mistakes.

A file, a mapping or nothing at all: either way the source ends up as one plain tree.
"""

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final

from headgate.settings.apps import AppForm, adopt_for_apps
from headgate.settings.environment import adopt_database, fill, override
from headgate.settings.findings import Findings
from headgate.settings.found import adopt_models
from headgate.settings.places import TOP, Place
from headgate.settings.reader import OptionsCheck, note_problem, option_problems, read_settings
from headgate.settings.records import ALWAYS_THERE, SIMULATED, Settings
from headgate.settings.yaml_text import MOST_DEPTH, MOST_DIGITS, Unreadable, read_yaml, refuse_key, sort_of

DEFAULT_FILE: Final = "headgate.yaml"
MOST_BYTES: Final = 1_000_000
MOST_VALUES: Final = 1_000_000


def load(
    source: Settings | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    env: Mapping[str, str],
    providers: Mapping[str, OptionsCheck],
    apps: Mapping[str, AppForm] | None = None,
) -> Settings:
    """Read the settings; raises `InvalidSettings` with every mistake in them.

    `source` is a file's path, a mapping of the same shape, settings built in code (only their providers are
    checked), or None: `./headgate.yaml` where it exists, else the defaults and the models that the environment has
    credentials for. `providers` and `apps` are the known ones.
    """
    findings = Findings()
    if isinstance(source, Settings):
        _check_providers(source, providers, findings)
        findings.refuse()
        return source
    tree = _read_source(source, findings)
    _add_simulated(tree)
    if source is None and not Path(DEFAULT_FILE).exists():
        adopt_models(tree, env, providers, findings)
    override(tree, env, findings)
    adopt_database(tree, env, findings)
    _add_simulated(tree)
    tree = fill(tree, env, findings)
    adopt_for_apps(tree, env, apps or {}, findings)
    settings = read_settings(tree, providers, findings, apps or {})
    findings.refuse(tree)
    return settings


def read_tree(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The plain tree of another YAML file, read as strictly; what it means is its reader's affair."""
    findings = Findings()
    tree = _read_source(path, findings)
    findings.refuse()
    return tree


def _add_simulated(tree: dict[str, Any]) -> None:
    """The simulated models are always there; `models: {}` or none at all leaves just them."""
    if tree.get("models") is None:
        tree["models"] = {}
    if isinstance(tree["models"], dict):
        for name in ALWAYS_THERE:
            tree["models"].setdefault(name, {"upstreams": [{"provider": SIMULATED}]})


def _check_providers(settings: Settings, providers: Mapping[str, OptionsCheck], findings: Findings) -> None:
    for name, model in settings.models.items():
        for index, upstream in enumerate(model.upstreams):
            place: Place = ("models", name, "upstreams", index)
            findings.secrets.add_options(upstream.options, place)
            for problem in option_problems(upstream.provider, upstream.model, upstream.options, providers):
                note_problem(problem, upstream.options, findings, place)


def _read_source(
    source: Mapping[str, Any] | str | os.PathLike[str] | None, findings: Findings
) -> dict[str, Any]:
    """The tree of a mapping or a file; of `./headgate.yaml`, if there is one, when no source is named."""
    path = None if isinstance(source, Mapping) else Path(source or DEFAULT_FILE)
    tree = None
    try:
        if path is None:
            tree = _Copy(findings).value(source, TOP)
        else:
            tree = read_yaml(text_of(path, required=source is not None), findings)
    except Unreadable as error:
        findings.add(TOP, str(error), tail=str(path or ""))
    if isinstance(tree, dict):
        return tree
    if tree is not None:
        findings.add(TOP, f"must be a mapping, not {sort_of(tree)}", tail=str(path or ""))
    # Without a tree nothing that comes after could be judged.
    findings.refuse()
    return {}


def text_of(path: Path, *, required: bool) -> str:
    """The text of a file of settings; `Unreadable` says why there is none. One that is not required may be missing."""
    content = _content_of(path, required=required)
    if len(content) > MOST_BYTES:
        raise Unreadable(f"the file is larger than {MOST_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"the file is not UTF-8 text (byte {error.start})") from None


def _content_of(path: Path, *, required: bool) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        if required:
            raise Unreadable("there is no such file") from None
        return b""
    except (OSError, ValueError) as error:
        raise Unreadable(f"the file cannot be read: {getattr(error, 'strerror', None) or error}") from None


class _Copy:
    """A copy made of nothing but dicts, lists and scalars, of a bounded size."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._count = 0

    def value(self, value: Any, place: Place) -> Any:
        self._count += 1
        if self._count > MOST_VALUES:
            raise Unreadable(f"the settings have more than {MOST_VALUES:,} values")
        if len(place) > MOST_DEPTH:
            raise Unreadable(f"the settings are nested more than {MOST_DEPTH} levels deep")
        match value:
            case Mapping():
                return self._mapping(value, place)
            case list() | tuple():
                return [self.value(inner, (*place, index)) for index, inner in enumerate(value)]
            case PurePath():
                return str(value)
            case _:
                return self._scalar(value, place)

    def _mapping(self, mapping: Mapping[Any, Any], place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in mapping.items():
            inside = (*place, str(key))
            if not isinstance(key, str):
                refuse_key(inside, self._findings)
            values.setdefault(str(key), self.value(value, inside))
        return values

    def _scalar(self, value: Any, place: Place) -> Any:
        if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
            self._findings.reject(place, "is too large a number")
        elif isinstance(value, str | int | float | None):
            return value
        else:
            self._findings.reject(place, f"must be plain data, not of type {type(value).__name__}")
        return None
