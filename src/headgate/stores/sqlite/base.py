"""What the verbs share: the writer, the reader, the statements."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from headgate.core.errors import QuotaExceeded
from headgate.stores import sql
from headgate.stores.listeners import Listeners
from headgate.stores.sqlite.reader import Reader
from headgate.stores.sqlite.writer import Writer

T = TypeVar("T")
SQL = sql.load("headgate.stores.sqlite")


class Verbs:
    """Verbs write through the one writer and read beside it."""

    _listeners: Listeners
    _writer: Writer
    _reader: Reader

    async def _write(self, verb: str, operation: Callable[[apsw.Connection], T]) -> T:
        started = time.perf_counter()
        try:
            return await self._writer.run(verb, operation)
        finally:
            self._listeners.trip(time.perf_counter() - started)

    async def _read(self, query: Callable[[apsw.Connection], T]) -> T:
        started = time.perf_counter()
        try:
            return await self._reader.run(query)
        finally:
            self._listeners.trip(time.perf_counter() - started)

    def _ring(self) -> None:
        """Jobs may have become ready."""
        raise NotImplementedError


def value(connection: apsw.Connection, statement: str, bindings: Any = ()) -> Any:
    """The first column of the first row, or None."""
    return connection.execute(statement, bindings).get


def rows(connection: apsw.Connection, statement: str, bindings: Any = ()) -> list[Any]:
    return connection.execute(statement, bindings).fetchall()


def stored_bytes(connection: apsw.Connection, tenant: str) -> int:
    return value(connection, SQL.stored_bytes_of, (tenant,)) or 0


def refuse_over(connection: apsw.Connection, tenant: str, quota: int | None, *, more: int = 0) -> None:
    """Raises when the tenant stores more bytes than it may, or would with `more`."""
    if quota is not None and (stored := stored_bytes(connection, tenant)) + more > quota:
        raise QuotaExceeded(tenant, stored=stored, quota=quota)


def changes(connection: apsw.Connection, statement: str, bindings: Any = ()) -> int:
    """How many rows a statement changed."""
    connection.execute(statement, bindings)
    return connection.changes()
