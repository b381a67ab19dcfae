"""Named moments at which a crash test may kill the process: around every commit. Costs a dictionary look-up.

`HEADGATE_FAILPOINT=settle.before_commit:3` kills this process, as `kill -9` would, the third time it gets there.
"""

import os
import signal
from collections.abc import Iterable
from typing import Final

VARIABLE: Final = "HEADGATE_FAILPOINT"
MOMENTS: Final = ("before_commit", "after_commit")

_armed: dict[str, int] = {}


def arm(text: str | None) -> None:
    """`name` or `name:count`; None or nothing disarms."""
    _armed.clear()
    if text:
        name, _, count = text.partition(":")
        _armed[name] = int(count or 1)


def reach(verbs: Iterable[str], moment: str) -> None:
    """These verbs are about to be committed here, or just were."""
    if not _armed:
        return
    for verb in verbs:
        name = f"{verb}.{moment}"
        if name not in _armed:
            continue
        _armed[name] -= 1
        if _armed[name] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get(VARIABLE))
