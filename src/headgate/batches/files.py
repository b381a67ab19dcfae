"""Files, as their users see them: upload, look, read, delete. Bytes lie in a folder, what is known of them in records."""

import asyncio
import math
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

import msgspec

from headgate.batches.folder import Draft, sweep
from headgate.core.batch_order import BATCH_TASK, LONGEST_WINDOW_S
from headgate.core.call import check_text
from headgate.core.errors import InvalidRequest, QuotaExceeded, StateConflict, StoreUnavailable, UnknownFile
from headgate.core.job import JobState
from headgate.core.ports.clock import Clock
from headgate.core.ports.jobs import JobFilter
from headgate.core.record import Record, RecordWrite
from headgate.machine.disk import Quota
from headgate.runner.durable import Durable
from headgate.runner.payloads import record

COLLECTION: Final = "files"
FILE_BYTES: Final = 200 * 1024 * 1024
MOST_LISTED: Final = 1000
DAY_S: Final = 86_400.0
SWEEP_EVERY_S: Final = 3600.0
SWEEP_BITE: Final = 500
PIECE_BYTES: Final = 1024 * 1024
THREADS: Final = 4
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_ID: Final = re.compile(r"file-[0-9a-f]{12}[0-9A-Za-z]{1,40}")


class FileObject(msgspec.Struct, frozen=True, kw_only=True):
    """A file as people see it, in OpenAI's shape. Times are whole epoch seconds."""

    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str = "processed"


class _Usage:
    """The bytes of one tenant that uploads now."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.uploads = 0
        self.stored = 0
        """When the store was asked last, with the files that were kept since."""
        self.open = 0
        """What its open uploads have written."""


class Upload:
    """A file that is being written; nothing of it stays unless it is kept."""

    def __init__(self, files: "Files", draft: Draft, usage: _Usage | None) -> None:
        self._files = files
        self._usage = usage
        self._counted_bytes = 0
        self.draft = draft

    async def write(self, data: bytes) -> None:
        if self._usage is not None:
            await self._files.quota.disk.check()
            self._counted_bytes += len(data)
            await self._files.count(self._usage, len(data))
        try:
            await self._files.in_thread(self.draft.write, data)
        except OSError as error:
            raise _no_room(error) from error

    async def keep(self, *, filename: str, purpose: str = "batch", tenant: str = "local") -> FileObject:
        """Durable when this returns, bytes and record."""
        check_text("filename", filename)
        check_text("tenant", tenant)
        if purpose != "batch":
            raise InvalidRequest(f"purpose must be batch, not {purpose!r:.60}", param="purpose")
        file = self._files.describe(
            self._files.new_id(), size_bytes=self.draft.size_bytes, filename=filename, purpose=purpose
        )
        await self.name(file.id)
        try:
            await self._files.remember(file, tenant)
        except QuotaExceeded:
            # No record names it, so no bytes may stay.
            await asyncio.to_thread(self._files.path(file.id).unlink, missing_ok=True)
            raise
        if self._usage is not None:
            self._usage.stored += self._counted_bytes
        return file

    def drop(self) -> None:
        """Nothing of it stays; of one that was kept, everything does."""
        self.draft.drop()
        if self._usage is not None:
            self._usage.open -= self._counted_bytes

    async def name(self, file_id: str) -> None:
        """The bytes alone: on the disk, under this name."""
        try:
            await self._files.in_thread(self.draft.keep, file_id)
        except OSError as error:
            raise _no_room(error) from error


class Files:
    """`gateway.files`."""

    def __init__(
        self,
        durable: Durable,
        folder: Path,
        *,
        clock: Clock,
        new_id: Callable[[], str],
        quota: Quota,
        most_bytes: int = FILE_BYTES,
    ) -> None:
        self.quota = quota
        """Of the disk that the folder is on, which need not be the store's."""
        self._durable = durable
        self._folder = folder
        self._clock = clock
        self._new_id = new_id
        self._most_bytes = most_bytes
        self._swept_at = -math.inf
        self._usage: dict[str, _Usage] = {}
        """Of the tenants that upload now."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="headgate-files")

    async def create(
        self,
        content: bytes | Path | AsyncIterable[bytes],
        *,
        filename: str | None = None,
        purpose: str = "batch",
        tenant: str = "local",
    ) -> FileObject:
        """Keep a file: its bytes, a path to copy from, or its pieces as they come."""
        name = filename or (content.name if isinstance(content, Path) else "batch.jsonl")
        async with self.upload(tenant=tenant) as upload:
            async for piece in self._pieces(content):
                await upload.write(piece)
            return await upload.keep(filename=name, purpose=purpose, tenant=tenant)

    @asynccontextmanager
    async def upload(
        self, *, tenant: str | None = None, most_bytes: int | None = None
    ) -> AsyncIterator[Upload]:
        """A file to be written piece by piece and kept at the end.

        With a `tenant` it is refused as soon as that one's quota, which its other open uploads use too, or the disk is
        used up.
        """
        await self._durable.start()
        await self._sweep_now_and_then()
        most = self._most_bytes if most_bytes is None else most_bytes
        draft = Draft(self._folder, self._new_id(), most)
        async with nullcontext() if tenant is None else self._usage_of(tenant) as usage:
            upload = Upload(self, draft, usage)
            try:
                yield upload
            finally:
                # Here, not in a thread: whoever was cancelled must not be cancelled once more before it is gone.
                upload.drop()

    async def get(self, file_id: str, *, tenant: str = "local") -> FileObject:
        """`UnknownFile` when this tenant has none of that id, or its time is over."""
        await self._durable.start()
        found = None
        if _ID.fullmatch(str(file_id)):
            found = await self._durable.store.get_record(tenant, COLLECTION, file_id)
        file = None if found is None else await self._unexpired(found, tenant)
        if file is None:
            raise UnknownFile(str(file_id))
        return file

    async def list(
        self,
        *,
        limit: int = 100,
        after: str | None = None,
        purpose: str | None = None,
        tenant: str = "local",
    ) -> Sequence[FileObject]:
        """Newest first; `after` is the last id of the page before."""
        check_limit(limit, most=MOST_LISTED)
        if after is not None and not _ID.fullmatch(after):
            raise InvalidRequest(f"after must be a file's id, not {after!r:.60}", param="after")
        await self._durable.start()
        store = self._durable.store
        listed: list[FileObject] = []
        while len(listed) < limit:
            page = await store.list_records(tenant, COLLECTION, limit=limit, after=after)
            for found in page:
                file = await self._unexpired(found, tenant)
                if file is not None and purpose in {None, file.purpose} and len(listed) < limit:
                    listed.append(file)
            if len(page) < limit:
                break
            after = page[-1].id
        return listed

    async def content(self, file_id: str, *, tenant: str = "local") -> Path:
        """Where its bytes lie, to be read."""
        file = await self.get(file_id, tenant=tenant)
        path = self.path(file.id)
        if not await self.in_thread(path.exists):
            raise StateConflict(
                f"the bytes of file {file.id} are not on this machine: its data_dir is not the one they were written to"
            )
        return path

    async def delete(self, file_id: str, *, tenant: str = "local") -> None:
        """`StateConflict` while a batch still needs it."""
        file = await self.get(file_id, tenant=tenant)
        user = await self._user(file.id, tenant)
        if user is not None:
            raise StateConflict(f"file {file.id} is in use: {user} has not ended; cancel it first, or wait")
        await self._durable.store.delete_record(tenant, COLLECTION, file.id)
        await self.in_thread(partial(self.path(file.id).unlink, missing_ok=True))

    def in_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> asyncio.Future[T]:
        """The disk is slow now and then: in threads that nothing else is done in."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    # ---- Quotas ---------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _usage_of(self, tenant: str) -> AsyncIterator[_Usage]:
        """`QuotaExceeded`, or `StoreUnavailable` below the floor of free disk."""
        await self.quota.disk.check()
        usage = self._usage.setdefault(tenant, _Usage(tenant))
        usage.uploads += 1
        try:
            await self._check_quota(usage, more=1)
            yield usage
        finally:
            usage.uploads -= 1
            if not usage.uploads:
                del self._usage[tenant]

    async def count(self, usage: _Usage, size_bytes: int) -> None:
        """Bytes that an upload is about to write."""
        usage.open += size_bytes
        if usage.stored + usage.open > self.quota.tenant_bytes:
            await self._check_quota(usage)  # Something may have been deleted since the store was asked.

    async def _check_quota(self, usage: _Usage, *, more: int = 0) -> None:
        usage.stored = (await self._durable.store.stored_bytes(tenant=usage.tenant)).get(usage.tenant, 0)
        total = usage.stored + usage.open
        if total + more > self.quota.tenant_bytes:
            raise QuotaExceeded(usage.tenant, stored=total, quota=self.quota.tenant_bytes)

    # ---- For batches ----------------------------------------------------------------------------------

    def path(self, file_id: str) -> Path:
        return self._folder / file_id

    def new_id(self) -> str:
        """It begins with its time, so that listings have an order."""
        return _first_id(self._now()) + self._new_id()[:20]

    def describe(self, file_id: str, *, size_bytes: int, filename: str, purpose: str) -> FileObject:
        now = self._now()
        return FileObject(
            id=file_id,
            bytes=size_bytes,
            created_at=int(now),
            expires_at=int(now + self._durable.rules.retention_days * DAY_S),
            filename=filename,
            purpose=purpose,
        )

    async def remember(self, file: FileObject, tenant: str) -> None:
        async with self.quota.bound() as quota:
            await self._durable.store.put_records(tenant, [as_record(file)], now=self._now(), quota=quota)

    async def sweep(self) -> int:
        """Remove half files nobody writes any more, and files whose time is over, with a window's length to spare."""
        await self._durable.start()
        self._swept_at = self._clock.now()
        before = self._now() - self._durable.rules.retention_days * DAY_S - LONGEST_WINDOW_S
        removed = await self.in_thread(partial(sweep, self._folder, before=before))
        while await self._durable.store.prune_files(before=_first_id(before), limit=SWEEP_BITE) == SWEEP_BITE:
            pass
        return removed

    async def _sweep_now_and_then(self) -> None:
        if self._clock.now() - self._swept_at >= SWEEP_EVERY_S:
            await self.sweep()

    async def _user(self, file_id: str, tenant: str) -> str | None:
        """A batch that has not ended and reads this file."""
        for state in (JobState.PENDING, JobState.RUNNING):
            which = JobFilter(tenant=tenant, task=BATCH_TASK, state=state)
            after = None
            while page := await self._durable.store.select(which, limit=MOST_LISTED, after=after):
                for job in page:
                    if file_id in (job.metadata or {}).get("files", ()):
                        return f"batch job {job.id}"
                after = page[-1].id
        return None

    async def _unexpired(self, found: Record, tenant: str) -> FileObject | None:
        file = msgspec.convert(found.body, FileObject)
        if file.expires_at > self._now():
            return file
        await self._durable.store.delete_record(tenant, COLLECTION, file.id)
        return None

    async def _pieces(self, content: bytes | Path | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        if isinstance(content, bytes):
            yield content
        elif isinstance(content, Path):
            with await self.in_thread(lambda: content.open("rb")) as source:
                while piece := await self.in_thread(source.read, PIECE_BYTES):
                    yield piece
        else:
            async for piece in content:
                yield piece

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def _first_id(at: float) -> str:
    """Before all ids of files that were made from then on."""
    return f"file-{int(max(at, 0.0) * 1000):012x}"


def check_limit(limit: object, *, most: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise InvalidRequest(f"limit must be a whole number from 1 to {most}", param="limit")


def as_record(file: FileObject) -> RecordWrite:
    body: dict[str, Any] = msgspec.to_builtins(file)
    return record(COLLECTION, file.id, body)


def _no_room(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"the file cannot be written: {error.strerror or error}")
