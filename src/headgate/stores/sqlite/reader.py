"""Looking without writing: threads with connections of their own, which never stand in the writer's way."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import apsw

from headgate.core.errors import StoreUnavailable
from headgate.core.ports.clock import Clock
from headgate.machine.sqlite.place import Place

T = TypeVar("T")
THREADS: Final = 2


class Reader:
    """Runs queries off the event loop."""

    def __init__(self, connect: Callable[[], apsw.Connection], *, place: Place, clock: Clock) -> None:
        self._connect = connect
        self._place = place
        self._clock = clock
        self._own = threading.local()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="headgate-sqlite-read")
        self._connections: list[apsw.Connection] = []

    async def run(self, query: Callable[[apsw.Connection], T]) -> T:
        try:
            with self._clock.outside():
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._query, query)
        except apsw.Error as error:
            raise self._place.translated(error) from error
        except RuntimeError as error:
            raise StoreUnavailable(f"{self._place.name} is closed") from error

    async def aclose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        for connection in self._connections:
            self._place.close(connection)

    def _query(self, query: Callable[[apsw.Connection], T]) -> T:
        connection: apsw.Connection | None = getattr(self._own, "connection", None)
        if connection is None or not self._place.uses(connection):
            connection = self._connect()
            if connection.readonly("main"):
                # Not kept: it may be blind to what is written once the disk is writable again.
                with contextlib.closing(connection):
                    return query(connection)
            self._own.connection = connection
            self._connections.append(connection)
        self._place.check(connection)
        return query(connection)
