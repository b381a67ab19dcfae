"""From the process to a command and back: its streams, its errors, its exit code. Knows all commands, and so takes time to load."""

import io
import os
import sys
from collections.abc import Sequence
from typing import Final

import typer

from headgate.cli.app import app
from headgate.cli.remote import VARIABLE
from headgate.cli.screen import silence
from headgate.cli.words import printable
from headgate.client import GatewayUnreachable
from headgate.core.errors import HeadgateError, Refused, StoreUnavailable

WRONG: Final = 2
"""The input or the settings are wrong: the same again will fail again."""
NOT_NOW: Final = 4
"""The database cannot be reached, or there is no room: the same again may work later."""


def run(words: Sequence[str] | None) -> int:
    """Run the command line; mistakes of the user end with a message and exit code 2, not a traceback."""
    _open_missing_streams()
    # A terminal that cannot show a bar or a dash gets a question mark, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code = _run(words)
    try:
        sys.stdout.flush()
    except OSError as error:
        silence(sys.stdout)
        if code == 0 and not isinstance(error, BrokenPipeError):
            _tell(str(error))
            code = WRONG
    return code


def _open_missing_streams() -> None:
    """Who closed a stream (`>&-`) wants none; but the next file to be opened must not get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _run(words: Sequence[str] | None) -> int:
    try:
        app(words, prog_name="headgate")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Refused as error:
        if isinstance(error, StoreUnavailable | GatewayUnreachable) and not error.waiting_helps:
            _tell(str(error))
            return WRONG
        _tell(f"{error}\n{_next_step(error)}try again in {error.retry_after_s:.0f} s.")
        return NOT_NOW
    except (HeadgateError, OSError) as error:
        _tell(str(error))
        return WRONG
    return 0


def _next_step(error: Refused) -> str:
    match error:
        case StoreUnavailable():
            return "Check the database (headgate doctor says what is wrong), then "
        case GatewayUnreachable():
            return f"Start it (headgate serve), or name another one with --url or {VARIABLE}; then "
        case _:
            return "The command is valid: "


def _tell(message: str) -> None:
    """A provider's or a task's words may be part of it."""
    typer.echo(f"headgate: {printable(message)}", err=True)
