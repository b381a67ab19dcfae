"""Where output goes: what was asked for to stdout, everything about it to stderr. Nothing is read as markup."""

import os
import sys
from typing import IO, Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from headgate.cli.words import escaped_json

PIPE_WIDTH: Final = 160
"""How wide a table is that goes into a file or a pipe."""


class _Screen(Console):
    def on_broken_pipe(self) -> None:
        """`| head -1`: the reader has what it wanted, which is no failure."""
        self.quiet = True
        silence(sys.stdout)
        raise SystemExit(0)


def stdout() -> Console:
    return _screen(error=False)


def stderr() -> Console:
    return _screen(error=True)


def _screen(*, error: bool) -> Console:
    screen = _Screen(stderr=error, markup=False, highlight=False, emoji=False, soft_wrap=True)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = PIPE_WIDTH
    return screen


def show(*lines: Text | str) -> None:
    """Lines to stdout; they are never wrapped by us."""
    screen = stdout()
    for line in lines:
        screen.print(line)


def note(line: Text | str) -> None:
    stderr().print(line)


def show_json(value: Any) -> None:
    """A value as msgspec encodes it. On a terminal, what would act on it is written as JSON's own escapes."""
    text = msgspec.json.encode(value).decode()
    try:
        sys.stdout.write((escaped_json(text) if sys.stdout.isatty() else text) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)
        raise SystemExit(0) from None


def silence(stream: IO[str]) -> None:
    """Nobody reads this any more: what is still in its buffer goes nowhere, quietly."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def say_at_the_end(line: str) -> None:
    """The last line of a process that ran for long: whoever started it may have stopped reading."""
    try:
        print(line, flush=True)  # noqa: T201 - the command's own output
    except BrokenPipeError:
        silence(sys.stdout)
