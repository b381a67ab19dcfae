"""The API's routes: what they take, read strictly, and what they answer."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

import headgate
from headgate.apps.bookmarks.address import canonical
from headgate.apps.bookmarks.bookmark import Bookmark, Given
from headgate.apps.bookmarks.describing import tidy
from headgate.apps.bookmarks.desk import ID, Desk, Listed, Wanted
from headgate.apps.bookmarks.options import BookmarkOptions

ALL: Final = "/v1/bookmarks"
ONE: Final = "/v1/bookmarks/{bookmark_id}"
AGAIN: Final = f"{ONE}/reprocess"
MOST_LISTED: Final = 100
_ADDRESS: Final[dict[str, object]] = {
    "description": "An http or https address, at most 2,000 characters, without user name, password or backslash.",
    "pattern": r"^\s*[Hh][Tt][Tt][Pp][Ss]?://[^\\]+$",
    "examples": ["https://example.org/article"],
}
"""For the document. What it cannot say, `canonical` checks."""
Short = Annotated[str, msgspec.Meta(max_length=100)]
Tag = Annotated[str, msgspec.Meta(max_length=50)]


class Save(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/bookmarks`."""

    url: Annotated[str, msgspec.Meta(extra_json_schema=_ADDRESS)]
    title: Annotated[str, msgspec.Meta(max_length=300)] | None = None
    tags: Annotated[list[Tag], msgspec.Meta(max_length=20)] | None = None
    source_hint: Short | None = None
    created_from: Short | None = None


class Listing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of `GET /v1/bookmarks`."""

    q: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    status: Literal["processing", "retrying", "done", "failed"] | None = None
    category: Short | None = None
    tag: Tag | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_LISTED)] = 20
    after: Annotated[str, msgspec.Meta(pattern=ID)] | None = None
    """The `last_id` of the page before."""


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a bookmark."""

    id: str
    object: Literal["bookmark"] = "bookmark"
    deleted: Literal[True] = True


class Api:
    """`/v1/bookmarks`."""

    def __init__(self, desk: Desk, options: BookmarkOptions) -> None:
        self._desk = desk
        self._options = options

    def routes(self) -> Sequence[headgate.AppRoute]:
        look, keyed = headgate.AppDoor.LOOK, headgate.AppKeyed
        return [
            headgate.AppRoute(
                method="POST",
                path=ALL,
                handle=self._save,
                body=Save,
                keyed=keyed.REQUIRED,
                summary="Save a bookmark",
                answers={200: Bookmark, 201: Bookmark},
            ),
            headgate.AppRoute(
                method="GET",
                path=ALL,
                handle=self._list,
                door=look,
                query=Listing,
                summary="List bookmarks",
                answers={200: Listed},
            ),
            headgate.AppRoute(
                method="GET",
                path=ONE,
                handle=self._get,
                door=look,
                summary="One bookmark",
                answers={200: Bookmark},
            ),
            headgate.AppRoute(
                method="DELETE",
                path=ONE,
                handle=self._delete,
                summary="Delete a bookmark",
                answers={200: Deleted},
                waits=True,
            ),
            headgate.AppRoute(
                method="POST",
                path=AGAIN,
                handle=self._reprocess,
                keyed=keyed.OPTIONAL,
                summary="Process a bookmark again",
                answers={202: Bookmark},
            ),
        ]

    async def _save(self, call: headgate.AppCall) -> headgate.AppReply:
        call.check_model(self._options.model)
        bookmark, status, replayed = await self._desk.save(
            _given(call.body), key=call.key, tenant=call.tenant
        )
        headers = {"location": f"/v1/bookmarks/{bookmark.id}"}
        if replayed:
            headers["idempotent-replayed"] = "true"
        return headgate.AppReply(value=bookmark, status=status, headers=headers)

    async def _list(self, call: headgate.AppCall) -> headgate.AppReply:
        asked: Listing = call.query
        wanted = Wanted(
            text=_said(asked.q), status=asked.status, category=asked.category, tag=_said(asked.tag)
        )
        listed = await self._desk.list(wanted, limit=asked.limit, after=asked.after, tenant=call.tenant)
        return headgate.AppReply(value=listed)

    async def _get(self, call: headgate.AppCall) -> headgate.AppReply:
        return headgate.AppReply(value=await self._desk.get(call.path["bookmark_id"], tenant=call.tenant))

    async def _delete(self, call: headgate.AppCall) -> headgate.AppReply:
        bookmark_id = call.path["bookmark_id"]
        await self._desk.delete(bookmark_id, tenant=call.tenant, deadline_s=call.deadline_s)
        return headgate.AppReply(value=Deleted(id=bookmark_id))

    async def _reprocess(self, call: headgate.AppCall) -> headgate.AppReply:
        call.check_model(self._options.model)
        bookmark = await self._desk.reprocess(
            call.path["bookmark_id"], by=call.by, key=call.key, tenant=call.tenant
        )
        return headgate.AppReply(value=bookmark, status=202)


def _given(body: Save) -> Given:
    tags = tuple(dict.fromkeys(filter(None, map(tidy, body.tags or ()))))
    return Given(
        url=canonical(body.url),
        title=_said(body.title),
        tags=tags,
        source_hint=_said(body.source_hint),
        created_from=_said(body.created_from),
    )


def _said(text: str | None) -> str | None:
    """On one line; what says nothing was not said."""
    return tidy(text or "") or None
