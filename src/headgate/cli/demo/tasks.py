"""The demo's own task: a job that kills its worker each time, as a crash in foreign code would."""

import os
import signal
from typing import Final

import msgspec

import headgate

VICTIM: Final = "HEADGATE_DEMO_VICTIM"
"""Holds the mark of the one demo whose workers may be killed."""
POISON: Final = "demo.poison"


class Poison(msgspec.Struct, frozen=True):
    """A job's input."""

    mark: str


@headgate.task(POISON)
async def poison(ctx: headgate.Context, given: Poison) -> str:  # noqa: ARG001 - every task gets one
    # Only where the demo that made this job started the process: a job that strays elsewhere kills nobody.
    if given.mark and os.environ.get(VICTIM) == given.mark:
        os.kill(os.getpid(), signal.SIGKILL)
    return "this is no worker of the demo's: nothing was done"
