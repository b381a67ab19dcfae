"""The way in: what a process loads before anything else, so that Ctrl-C is quiet from the start."""

import gc
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NoReturn

INTERRUPTED: Final = 130


def main(words: Sequence[str] | None = None) -> NoReturn:
    try:
        code = _load()(words)
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise SystemExit(code)


@cache
def _load() -> Callable[[Sequence[str] | None], int]:
    """Code and its types stay for good: looking for garbage among them would be a third of a short command's time."""
    gc.disable()
    try:
        from headgate.cli.process import run  # noqa: PLC0415 - takes a moment, in which somebody may press Ctrl-C
    finally:
        gc.freeze()
        gc.enable()
    return run
