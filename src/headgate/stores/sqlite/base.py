"""What the verbs share: the writer, the reader, the statements."""

from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from headgate.stores import sql
from headgate.stores.sqlite.reader import Reader
from headgate.stores.sqlite.writer import Writer

T = TypeVar("T")
SQL = sql.load("headgate.stores.sqlite")


class Verbs:
    """Verbs write through the one writer and read beside it."""

    _writer: Writer
    _reader: Reader

    async def _write(self, verb: str, operation: Callable[[apsw.Connection], T]) -> T:
        return await self._writer.run(verb, operation)

    async def _read(self, query: Callable[[apsw.Connection], T]) -> T:
        return await self._reader.run(query)

    def _ring(self) -> None:
        """Jobs may have become ready."""
        raise NotImplementedError


def value(connection: apsw.Connection, statement: str, bindings: Any = ()) -> Any:
    """The first column of the first row, or None."""
    return connection.execute(statement, bindings).get


def rows(connection: apsw.Connection, statement: str, bindings: Any = ()) -> list[Any]:
    return connection.execute(statement, bindings).fetchall()


def changes(connection: apsw.Connection, statement: str, bindings: Any = ()) -> int:
    """How many rows a statement changed."""
    connection.execute(statement, bindings)
    return connection.changes()
