"""Named SQL statements from `.sql` files: `-- name: claim`, then what it is for, then the statement."""

import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from types import SimpleNamespace
from typing import Final

from headgate.core.errors import SettingsError

BEATS: Final = 4
"""The migration since which nodes raise beats."""
_NAMED: Final = re.compile(
    r"^-- name: (\w+)\n((?:--[^\n]*\n)*)(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL
)


def refuse_newer(found: int, known: int) -> None:
    """A schema from the future may mean anything: better not to touch it."""
    if found > known:
        raise SettingsError(
            f"the database has schema {found}, this headgate knows {known}: it was written by a newer version."
            " Upgrade headgate, or use another database."
        )


def refuse_beside(older: Sequence[tuple[str, float]]) -> None:
    """Nodes (each with what is left of its lease) that renew by a clock cannot live beside those that raise beats."""
    if older:
        names = ", ".join(node for node, _ in older)
        raise SettingsError(
            f"{len(older)} node(s) of an older headgate still use this database: {names}. Stop all of them, then start"
            f" this one again. A node that was killed is forgotten in {max(left_s for _, left_s in older):.0f} s."
        )


class Statements(SimpleNamespace):
    """Statements as attributes. A name that no file has is told as such."""

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no SQL statement is called {name!r}")


def load(package: str) -> Statements:
    """Every statement of the package's `.sql` files."""
    found: dict[str, str] = {}
    for file in sorted(resources.files(package).iterdir(), key=lambda file: file.name):
        if not file.name.endswith(".sql"):
            continue
        for name, _about, statement in _NAMED.findall(file.read_text(encoding="utf-8")):
            if name in found:
                raise ValueError(f"two SQL statements are called {name!r}")
            found[name] = statement.strip()
    return Statements(**found)


@cache
def migrations(package: str) -> list[tuple[int, str]]:
    """(number, script), in order: `0001_jobs.sql`, `0002_….sql`, with no gap."""
    files = [file for file in resources.files(package).iterdir() if file.name.endswith(".sql")]
    scripts = sorted((int(file.name[:4]), file.read_text(encoding="utf-8")) for file in files)
    if [number for number, _ in scripts] != list(range(1, len(scripts) + 1)):
        raise ValueError(f"the migrations of {package} are not numbered 1, 2, 3, …")
    return scripts
