"""A process whose clocks can be set from outside: a file says how far they are ahead of the machine's.

Imported before headgate, so that whatever takes `time.time` or `time.clock_gettime` at its import takes these.
"""

import mmap
import struct
import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Final

FORMAT: Final = struct.Struct("dd")
"""The wall clock, and what passed while the machine was suspended: `CLOCK_BOOTTIME` counts that, `monotonic` does not."""
_WALL: Final = 0
_SUSPENDED: Final = 1
_real_time = time.time
_real_clock = time.clock_gettime
_file: mmap.mmap | None = None


def follow(path: str) -> None:
    """From now on this process's clocks are ahead by what the file says."""
    global _file  # noqa: PLW0603 - a process has one set of clocks
    with Path(path).open("r+b") as file:
        _file = mmap.mmap(file.fileno(), FORMAT.size)
    from headgate.machine import clock  # noqa: PLC0415 - after this module's own clocks

    clock.datetime = _Datetime  # type: ignore[attr-defined]  # what the module imports by name


class _Datetime(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "_Datetime":
        return cls.fromtimestamp(_time(), tz)


def _ahead(which: int) -> float:
    return 0.0 if _file is None else float(FORMAT.unpack_from(_file)[which])


def _time() -> float:
    return _real_time() + _ahead(_WALL)


def _clock_gettime(clock: int) -> float:
    ahead = {time.CLOCK_REALTIME: _WALL, time.CLOCK_BOOTTIME: _SUSPENDED}.get(clock)
    return _real_clock(clock) + (0.0 if ahead is None else _ahead(ahead))


time.time = _time
time.clock_gettime = _clock_gettime
