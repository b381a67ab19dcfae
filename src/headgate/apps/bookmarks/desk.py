"""What can be done with bookmarks: save, look, list, process again, delete. Every look-up carries its tenant."""

import asyncio
import contextlib
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

import msgspec

import headgate
from headgate.apps.bookmarks.bookmark import (
    COLLECTION,
    Bookmark,
    Given,
    Kept,
    body_of,
    kept_in,
    search_text,
    settled,
    show,
    standing,
)
from headgate.apps.bookmarks.options import BookmarkOptions
from headgate.apps.bookmarks.processing import EXPIRES_AFTER_S, TASK
from headgate.apps.bookmarks.spending import spent, why_held

SAVE: Final = "POST /v1/bookmarks"
REPROCESS: Final = "POST /v1/bookmarks/{bookmark_id}/reprocess"
LETS_GO_S: Final = 10.0
"""How long a deletion waits for a job that is running to let go."""
BITE: Final = 100
MOST_LOOKED_AT: Final = 1000
"""A filter is given up for this request after so many; its page says where to go on."""
ID: Final = "^bm_[0-9a-f]{12}[0-9A-Za-z_-]{1,40}$"
_ID: Final = re.compile(ID)


class UnknownBookmark(headgate.InvalidRequest):
    """No such bookmark; another tenant's looks the same."""

    code = "not_found"

    def __init__(self, bookmark_id: str) -> None:
        super().__init__(f"there is no bookmark {bookmark_id[:100]!r}", param="id")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a list is about."""

    text: str | None = None
    status: str | None = None
    category: str | None = None
    tag: str | None = None

    @property
    def filters(self) -> bool:
        return any((self.status, self.category, self.tag))

    def takes(self, bookmark: Bookmark) -> bool:
        return (
            self.status in {None, bookmark.status}
            and self.category in {None, bookmark.category}
            and (self.tag is None or self.tag in bookmark.tags)
        )


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A page; the next one goes on after `last_id`, which a filter may have left out of it."""

    object: Literal["list"] = "list"
    data: list[Bookmark]
    has_more: bool
    last_id: str | None


class Desk:
    """The bookmarks of all tenants, behind their names."""

    def __init__(
        self, gateway: headgate.Gateway, new_id: Callable[[], str], options: BookmarkOptions
    ) -> None:
        self._jobs = gateway.jobs
        self._dead_letters = gateway.dead_letters
        self._records = gateway.records
        self._epoch = gateway.now
        self._new_id = new_id
        self._options = options

    async def save(self, given: Given, *, key: str | None, tenant: str) -> tuple[Bookmark, int, bool]:
        """The bookmark, the status of the answer, and whether the key brought it back.

        Key, bookmark and job are written together or not at all. An address that is there already stays as it is.
        """
        kept = Kept(given=given)
        new = headgate.record(
            COLLECTION, self._new_id(), body_of(kept), unique_key=given.url, text=search_text(kept)
        )
        try:
            handle = await self._submit(given, new, tenant=tenant, key=key, endpoint=SAVE)
        except headgate.RecordExists as known:
            return await self._found(given.url, tenant), 200, known.replayed
        return await self._found(given.url, tenant), 201, not handle.created

    async def get(self, bookmark_id: str, *, tenant: str) -> Bookmark:
        return await self._shown(await self._record(bookmark_id, tenant), tenant)

    async def list(self, wanted: Wanted, *, limit: int, after: str | None, tenant: str) -> Listed:
        """Newest first."""
        found: list[Bookmark] = []
        looked_at = 0
        while True:
            bite = BITE if wanted.filters else limit
            records = await self._records.list(
                COLLECTION, limit=bite, after=after, text=wanted.text, tenant=tenant
            )
            looked_at += len(records)
            for bookmark in await asyncio.gather(*(self._shown(record, tenant) for record in records)):
                if len(found) == limit:
                    return Listed(data=found, has_more=True, last_id=after)
                after = bookmark.id
                if wanted.takes(bookmark):
                    found.append(bookmark)
            if len(records) < bite:
                return Listed(data=found, has_more=False, last_id=after)
            if len(found) == limit or looked_at >= MOST_LOOKED_AT:
                return Listed(data=found, has_more=await self._more(wanted, after, tenant), last_id=after)

    async def reprocess(self, bookmark_id: str, *, by: str, key: str | None, tenant: str) -> Bookmark:
        """What is at work stays at work, and what waits for its time is due now; a dead letter is replayed; anything
        else gets a new job.
        """
        record = await self._record(bookmark_id, tenant)
        job = await self._job(record, tenant)
        if job is not None and job.state is headgate.JobState.DEAD_LETTER:
            # A conflict: somebody else was quicker.
            with contextlib.suppress(headgate.StateConflict):
                await self._dead_letters.replay(job.id, by=by, tenant=tenant)
        elif job is None or job.state.final:
            await self._begin_again(record, key, tenant)
        elif job.run_at > self._now():
            await self._make_due(job, tenant)
        return await self.get(bookmark_id, tenant=tenant)

    async def delete(self, bookmark_id: str, *, tenant: str, deadline_s: float | None = None) -> None:
        """Its job is stopped first: one that ended after the deletion would bring the bookmark back."""
        record = await self._record(bookmark_id, tenant)
        if record.job_id is not None and settled(record, kept_in(record)) is None:
            await self._stop(record.job_id, tenant, min(LETS_GO_S, deadline_s or LETS_GO_S))
        await self._records.delete(COLLECTION, bookmark_id, tenant=tenant)

    # ---- Inside ---------------------------------------------------------------------------------------

    async def _submit(
        self,
        given: Given,
        record: Any,
        *,
        tenant: str,
        key: str | None,
        endpoint: str,
        dedup_key: str | None = None,
    ) -> headgate.JobHandle:
        return await self._jobs.submit(
            TASK,
            given,
            tenant=tenant,
            idempotency_key=key,
            endpoint=endpoint,
            dedup_key=dedup_key,
            # For readers of the dead letter. The id is new with each submission, so the key does not cover it.
            unkeyed_metadata={"bookmark_id": record.id},
            expires_after_s=EXPIRES_AFTER_S,
            records=[record],
        )

    async def _begin_again(self, record: headgate.Record, key: str | None, tenant: str) -> None:
        kept = kept_in(record)
        same = headgate.record(
            COLLECTION, record.id, body_of(kept), unique_key=kept.given.url, text=search_text(kept)
        )
        await self._submit(kept.given, same, tenant=tenant, key=key, endpoint=REPROCESS, dedup_key=record.id)

    async def _make_due(self, job: headgate.Job, tenant: str) -> None:
        """At a ceiling it would only wait again."""
        if job.error_class == "deferred":
            now = self._now()
            tallies = partial(self._records.list, tenant=tenant)
            if held := why_held(await spent(tallies, now), self._options, now):
                raise headgate.StateConflict(f"this bookmark is {held[1]}")
        await self._jobs.make_due(job.id, tenant=tenant)

    async def _found(self, url: str, tenant: str) -> Bookmark:
        record = await self._records.find(COLLECTION, url, tenant=tenant)
        if record is None:
            raise headgate.StateConflict(
                "the bookmark that was saved under this key has been deleted; save it under a new key"
            )
        return await self._shown(record, tenant)

    async def _record(self, bookmark_id: str, tenant: str) -> headgate.Record:
        record = None
        if _ID.fullmatch(bookmark_id):
            record = await self._records.get(COLLECTION, bookmark_id, tenant=tenant)
        if record is None:
            raise UnknownBookmark(bookmark_id)
        return record

    async def _more(self, wanted: Wanted, after: str | None, tenant: str) -> bool:
        return bool(
            await self._records.list(COLLECTION, limit=1, after=after, text=wanted.text, tenant=tenant)
        )

    async def _shown(self, record: headgate.Record, tenant: str) -> Bookmark:
        kept = kept_in(record)
        if (done := settled(record, kept)) is not None:
            return show(record, kept, done)
        stands = standing(await self._job(record, tenant), self._now())
        if stands.status == "done":
            # It ended between our two looks: its description is there by now.
            record = await self._records.get(COLLECTION, record.id, tenant=tenant) or record
            kept = kept_in(record)
        return show(record, kept, stands)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._epoch(), UTC)

    async def _job(self, record: headgate.Record, tenant: str) -> headgate.Job | None:
        try:
            return None if record.job_id is None else await self._jobs.get(record.job_id, tenant=tenant)
        except headgate.UnknownJob:
            return None

    async def _stop(self, job_id: str, tenant: str, patience_s: float) -> None:
        try:
            await self._jobs.cancel(job_id, tenant=tenant)
            await self._jobs.wait(job_id, timeout=patience_s, tenant=tenant)
        except headgate.UnknownJob:
            return
        except headgate.StateConflict:
            await self._discard(job_id, tenant)
        except TimeoutError:
            raise headgate.StateConflict(
                "the bookmark is being processed and could not be stopped in time; delete it again in a moment"
            ) from None

    async def _discard(self, job_id: str, tenant: str) -> None:
        """It has ended. As a dead letter it would wait for somebody, or be revived."""
        with contextlib.suppress(headgate.StateConflict):
            await self._dead_letters.discard(job_id, by=COLLECTION, tenant=tenant)
