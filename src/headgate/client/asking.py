"""What the parts of a client share: a call is made, sent, and its answer read. Keys are made here, once per action."""

import urllib.parse
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from headgate.client.answers import Answer
from headgate.client.line import Call, Line
from headgate.core.errors import InvalidRequest
from headgate.core.idempotency import check_key

T = TypeVar("T")


class Page(msgspec.Struct):
    """One page of a list."""

    data: list[msgspec.Raw]
    has_more: bool = False
    last_id: str | None = None


class Asking:
    """A part of the client: it asks over one line."""

    def __init__(self, line: Line, new_id: Callable[[], str]) -> None:
        self.line = line
        self._new_id = new_id

    async def _get(self, path: str, query: Mapping[str, Any] | None = None) -> Answer:
        return await self.line.ask(Call(method="GET", path=with_query(path, query or {})))

    async def _post(self, path: str, body: Any = None, *, key: str | None = None) -> Answer:
        return await self.line.ask(self._posting(path, body, key=key))

    def _posting(
        self, path: str, body: Any, *, key: str | None, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> Call:
        """A request that may be sent several times and counts once."""
        content = b"" if body is None else msgspec.json.encode(body)
        made = self._new_id() if key is None else header_key(key)
        return Call(method="POST", path=path, body=content, key=made, headers=headers)

    async def _pages(self, path: str, query: Mapping[str, Any], kind: type[T]) -> AsyncGenerator[T, None]:
        """Every entry of a list, page by page."""
        after: str | None = query.get("after")
        while True:
            page = (await self._get(path, {**query, "after": after})).read(Page)
            for entry in page.data:
                yield msgspec.json.decode(entry, type=kind)
            after = page.last_id
            if not page.has_more or after is None:
                return


def header_key(key: str) -> str:
    """A key that somebody brought, as it can stand in a header."""
    if not check_key(key).isascii():
        raise InvalidRequest("an idempotency key must be ASCII to be sent", param="idempotency_key")
    return key


def with_query(path: str, query: Mapping[str, Any]) -> str:
    asked = {name: _text(value) for name, value in query.items() if value is not None}
    return f"{path}?{urllib.parse.urlencode(asked)}" if asked else path


def in_path(word: str) -> str:
    """An id as a part of a path, whatever somebody made of it."""
    return urllib.parse.quote(word, safe="")


def given(**fields: Any) -> dict[str, Any]:
    """What was said; None was not."""
    return {name: value for name, value in fields.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime) else str(value)
