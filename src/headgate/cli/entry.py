"""The way in: what a process loads before anything else, so that Ctrl-C is quiet from the start."""

from collections.abc import Sequence
from typing import Final, NoReturn

INTERRUPTED: Final = 130


def main(words: Sequence[str] | None = None) -> NoReturn:
    try:
        from headgate.cli.process import run  # noqa: PLC0415 - takes a second, in which somebody may press Ctrl-C

        code = run(words)
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise SystemExit(code)
