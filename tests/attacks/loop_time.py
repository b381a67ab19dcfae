"""How long the callbacks of the test's own event loop take, in processor time: a busy machine does not lengthen it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

MAX_CALLBACK_S = 0.1


@contextmanager
def callback_times() -> Iterator[list[float]]:
    """The seconds of each callback of asyncio's loop in this block."""
    seconds: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        seconds.append(time.thread_time() - began)

    with mock.patch.object(asyncio.Handle, "_run", timed):
        yield seconds
