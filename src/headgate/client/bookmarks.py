"""Bookmarks from afar: saved under one key, however often the network fails."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from headgate.client.asking import Asking, given, in_path
from headgate.client.line import Call

PATH = "/v1/bookmarks"
Bookmark = dict[str, Any]


class Bookmarks(Asking):
    """`client.bookmarks`, where the gateway has them mounted."""

    async def save(
        self,
        url: str,
        *,
        title: str | None = None,
        tags: Sequence[str] | None = None,
        source_hint: str | None = None,
        created_from: str | None = None,
        idempotency_key: str | None = None,
    ) -> Bookmark:
        """The bookmark; one that was there already is given as it is."""
        body = bookmark_body(url, title=title, tags=tags, source_hint=source_hint, created_from=created_from)
        return (await self._post(PATH, body, key=idempotency_key)).read(Bookmark)

    def list(self, /, *, page_size: int | None = None, **filters: Any) -> AsyncGenerator[Bookmark, None]:
        """Newest first, fetched page by page."""
        return self._pages(PATH, {**filters, "limit": page_size}, Bookmark)

    async def get(self, bookmark_id: str) -> Bookmark:
        return (await self._get(f"{PATH}/{in_path(bookmark_id)}")).read(Bookmark)

    async def reprocess(self, bookmark_id: str, *, idempotency_key: str | None = None) -> Bookmark:
        path = f"{PATH}/{in_path(bookmark_id)}/reprocess"
        return (await self._post(path, key=idempotency_key)).read(Bookmark)

    async def delete(self, bookmark_id: str) -> None:
        """Its job is stopped first. A bookmark that is not there is an `InvalidRequest` with the code `not_found`."""
        await self.line.ask(Call(method="DELETE", path=f"{PATH}/{in_path(bookmark_id)}"))


def bookmark_body(
    url: str,
    *,
    title: str | None = None,
    tags: Sequence[str] | None = None,
    source_hint: str | None = None,
    created_from: str | None = None,
) -> dict[str, Any]:
    return given(url=url, title=title, tags=tags, source_hint=source_hint, created_from=created_from)
