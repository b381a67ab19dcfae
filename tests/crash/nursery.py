"""Forks the processes of the crash tests: `python -m crash.nursery`. It has imported everything, so they start fast.

A line of JSON in, one out: `{"role": …}` forks a child and answers its pid; `{"reap": pid}` answers how it ended.
When whoever holds the other end of stdin is gone, so is the nursery; and when the nursery is gone, so are the children.
"""

import asyncio
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import signal
import sys
import traceback
from typing import Any

import crash.clocks  # noqa: F401 - first: what comes after it takes its clocks
from crash.roles import ROLES

from headgate.stores import failpoints

PR_SET_PDEATHSIG = 1


def main() -> None:
    # They are imported when first needed, which would be in every child anew.
    importlib.import_module("headgate.wiring")
    with contextlib.suppress(ImportError):
        importlib.import_module("headgate.stores.postgres")
    for command in ("process", "serve", "work"):
        importlib.import_module(f"headgate.cli.{command}")
    importlib.import_module("headgate.wiring.serving")
    gc.freeze()
    for line in sys.stdin:
        asked = json.loads(line)
        answer = _reap(asked["reap"]) if "reap" in asked else _fork(asked)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _reap(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(asked: dict[str, Any]) -> int:
    pid = os.fork()
    if not pid:
        _live(asked)
    return pid


def _live(asked: dict[str, Any]) -> None:
    """A child's whole life. It never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _redirect(asked["log"])
        failpoints.arm(asked["failpoint"])
        life = ROLES[asked["role"]](**asked["arguments"])
        if life is not None:
            asyncio.run(life)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - a child that returned would be a second nursery
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _redirect(log: str) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    fd = os.open(f"{log}-{os.getpid()}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


if __name__ == "__main__":
    main()
