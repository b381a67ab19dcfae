"""The parsing process: `python -m headgate.apps.untrusted.child package.module:function`.

Reads calls from its standard input and writes what came of them to its standard output, one after the other, until
the input ends: with its parent. Each call is the function's arguments by name, in msgpack behind their length.
"""

import contextlib
import importlib
import math
import os
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from headgate.apps.untrusted.errors import Unreadable

try:
    import resource
except ImportError:  # Windows.
    resource = None  # type: ignore[assignment]

LENGTH: Final = struct.Struct("!I")
MEMORY_BYTES: Final = 512 * 1024 * 1024
CPU_S: Final = 10.0
"""Of one call."""
ORPHAN_S: Final = 90
"""A call that hangs without using the processor is killed by the parent, long before this. A parent may be killed, too."""


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What came of a call: its value, or one of three reasons why there is none."""

    value: Any = None
    unreadable: str | None = None
    missing: str | None = None
    spent: bool = False
    """It took all the memory there is: this process should not go on."""


def main() -> None:
    # Who stops the parent stops this with it; a signal to the whole group must not break what is being parsed.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    results = os.fdopen(os.dup(1), "wb")
    # What a library prints is no result.
    os.dup2(2, 1)
    _bound("RLIMIT_CORE", 0)
    _bound("RLIMIT_AS", MEMORY_BYTES)
    while head := sys.stdin.buffer.read(LENGTH.size):
        arguments = msgspec.msgpack.decode(sys.stdin.buffer.read(*LENGTH.unpack(head)))
        _bound_cpu()
        _alarm(ORPHAN_S)
        result = msgspec.msgpack.encode(_call(sys.argv[1], arguments))
        _alarm(0)
        results.write(LENGTH.pack(len(result)) + result)
        results.flush()


def _call(function: str, arguments: dict[str, Any]) -> Result:
    try:
        return Result(_find(function)(**arguments))
    except Unreadable as error:
        return Result(unreadable=str(error))
    except ImportError as error:
        return Result(missing=str(error))
    except MemoryError:
        return Result(unreadable="parsing it takes too much memory", spent=True)
    except Exception as error:  # noqa: BLE001 - foreign code over strangers' bytes
        return Result(unreadable=f"its parser failed with {type(error).__name__}")


def _find(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def _bound_cpu() -> None:
    """The kernel ends a call that takes longer, also when the parent is gone."""
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _bound("RLIMIT_CPU", math.ceil(usage.ru_utime + usage.ru_stime + CPU_S))


def _alarm(seconds: int) -> None:
    """SIGALRM ends this process, whatever it is doing."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


def _bound(name: str, value: int) -> None:
    # A limit that is stricter already stays; not every system has every limit.
    with contextlib.suppress(ValueError, OSError):
        which = getattr(resource, name, None)
        if which is not None:
            _, hard = resource.getrlimit(which)
            resource.setrlimit(which, (value, hard))


if __name__ == "__main__":
    main()
