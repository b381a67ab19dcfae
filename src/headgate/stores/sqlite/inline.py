"""A writer without a thread, for a database that is thrown away with its process: in virtual time nobody waits meanwhile."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from headgate.core.errors import StoreUnavailable
from headgate.stores.sqlite.writer import Operation, Writer

T = TypeVar("T")


class InlineWriter(Writer):
    """Each operation in a transaction of its own, before `run` returns."""

    def start(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def run(self, verb: str, operation: Callable[[apsw.Connection], T]) -> T:
        if self._closed or self._connection is None:
            raise StoreUnavailable(f"{self._place.name} is {'closed' if self._closed else 'not open'}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        [(_, result, error)] = self._alone(Operation(verb, operation, future, loop))
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # what the operation returned

    async def aclose(self) -> None:
        self._closed = True
        self._look()
        self._reopen()
