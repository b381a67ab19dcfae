"""`.env` in the working directory: variables for a command that its environment does not have.

Only commands read it. A program that uses the library has an environment of its own, and decides what is in it.
"""

import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

from headgate.core.problems import InvalidSettings, Problem
from headgate.settings.loading import text_of
from headgate.settings.yaml_text import Unreadable

FILE: Final = ".env"
MAX_REPORTED: Final = 10
_HEAD: Final = re.compile(r"[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*=")
_QUOTED: Final = re.compile(
    r"""[ \t]*(?:'(?P<plain>[^']*)'|"(?P<escaped>[^"\\]*(?:\\.[^"\\]*)*)")[ \t]*(?:\#[^\n]*)?(?=\n|\Z)""",
    re.DOTALL,
)
_OPENING: Final = re.compile(r"[ \t]*['\"]")
_COMMENT: Final = re.compile(r"[ \t]#")
_ESCAPE: Final = re.compile(r"\\([nrt\"\\$`])")
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}


class Dotenv:
    """What the file adds to an environment, until it is withdrawn. A variable that is set there stays as it is."""

    def __init__(self, environment: MutableMapping[str, str], path: Path = Path(FILE)) -> None:
        self._environment = environment
        self._path = path
        self._added: dict[str, str] = {}

    def read(self) -> None:
        """Add what the file says now; what it said before and says no more is withdrawn. A wrong file changes nothing."""
        variables = read_dotenv(self._path)
        self.withdraw()
        self._added = {name: value for name, value in variables.items() if name not in self._environment}
        self._environment.update(self._added)

    def withdraw(self) -> None:
        for name, value in self._added.items():
            if self._environment.get(name) == value:
                del self._environment[name]
        self._added = {}


def read_dotenv(path: Path) -> dict[str, str]:
    """The variables of the file, none if there is no file. Mistakes name their lines and never show what is in them.

    A folder is not such a file: `python -m venv .env` makes one. A named pipe is: secret managers write to one.
    """
    if path.is_dir():
        return {}
    try:
        text = text_of(path, required=False)
    except Unreadable as error:
        raise InvalidSettings([Problem(str(path), str(error))]) from None
    variables: dict[str, str] = {}
    problems: list[Problem] = []
    for line, found in _entries(text.replace("\r\n", "\n").replace("\r", "\n")):
        if isinstance(found, str):
            problems.append(Problem(f"{path} line {line}", found))
        else:
            variables.update([found])
    if len(problems) > MAX_REPORTED:
        left = len(problems) - MAX_REPORTED
        problems[MAX_REPORTED:] = [Problem(str(path), f"{left} more lines cannot be read")]
    if problems:
        raise InvalidSettings(problems)
    return variables


def _entries(text: str) -> Iterator[tuple[int, tuple[str, str] | str]]:
    """Each line's number with the name and the value it sets, or with what is wrong with it."""
    line, start = 1, 0
    while start < len(text):
        end = _end_of_line(text, start)
        head = _HEAD.match(text, start, end)
        if head is not None:
            quoted = _QUOTED.match(text, head.end())
            end = end if quoted is None else quoted.end()
            value = _unquoted(text[head.end() : end]) if quoted is None else _value_in(quoted)
            if value is None:
                yield line, "the value begins with a quote and does not end with it"
            elif "\0" in value:
                yield line, "the value has a NUL character in it"
            else:
                yield line, (head["name"], value)
        elif (rest := text[start:end].strip()) and not rest.startswith("#"):
            yield line, "must be NAME=value; a name has letters, digits and underscores"
        line += text.count("\n", start, end) + 1
        start = end + 1


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _value_in(quoted: re.Match[str]) -> str:
    if (plain := quoted["plain"]) is not None:
        return plain
    return _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), quoted["escaped"])


def _unquoted(text: str) -> str | None:
    """Up to a comment, without the blanks around it."""
    if _OPENING.match(text):
        return None
    comment = _COMMENT.search(text)
    return text[: comment.start() if comment else None].strip()
