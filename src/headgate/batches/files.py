"""Files, as their users see them: upload, look, read, delete. Bytes lie in a folder, what is known of them in records."""

import asyncio
import math
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from headgate.batches.folder import Draft, sweep
from headgate.core.batch import LONGEST_WINDOW_S
from headgate.core.errors import InvalidRequest, StateConflict, StoreUnavailable, UnknownFile
from headgate.core.job import JobState
from headgate.core.messages import check_text
from headgate.core.ports.clock import Clock
from headgate.core.ports.jobs import JobFilter
from headgate.core.record import Record, RecordWrite
from headgate.runner.durable import Durable
from headgate.runner.payloads import record

COLLECTION: Final = "files"
BATCH_TASK: Final = "headgate.batch"
FILE_BYTES: Final = 200 * 1024 * 1024
MOST_LISTED: Final = 1000
DAY_S: Final = 86_400.0
SWEEP_EVERY_S: Final = 3600.0
PIECE_BYTES: Final = 1024 * 1024
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


class Upload:
    """A file that is being written; nothing of it stays unless it is kept."""

    def __init__(self, files: "Files", draft: Draft) -> None:
        self._files = files
        self.draft = draft

    async def write(self, data: bytes) -> None:
        try:
            await asyncio.to_thread(self.draft.write, data)
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
        await self._files.remember(file, tenant)
        return file

    async def name(self, file_id: str) -> None:
        """The bytes alone: on the disk, under this name."""
        try:
            await asyncio.to_thread(self.draft.keep, file_id)
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
        most_bytes: int = FILE_BYTES,
    ) -> None:
        self._durable = durable
        self._folder = folder
        self._clock = clock
        self._new_id = new_id
        self._most_bytes = most_bytes
        self._swept_at = -math.inf

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
        async with self.upload() as upload:
            async for piece in _pieces(content):
                await upload.write(piece)
            return await upload.keep(filename=name, purpose=purpose, tenant=tenant)

    @asynccontextmanager
    async def upload(self, *, most_bytes: int | None = None) -> AsyncIterator[Upload]:
        """A file to be written piece by piece and kept at the end."""
        await self._durable.start()
        await self._sweep_now_and_then()
        most = self._most_bytes if most_bytes is None else most_bytes
        draft = Draft(self._folder, self._new_id(), most)
        try:
            yield Upload(self, draft)
        finally:
            # Here, not in a thread: whoever was cancelled must not be cancelled once more before it is gone.
            draft.drop()

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
        if not await asyncio.to_thread(path.exists):
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
        await asyncio.to_thread(self.path(file.id).unlink, missing_ok=True)

    # ---- For batches ----------------------------------------------------------------------------------

    def path(self, file_id: str) -> Path:
        return self._folder / file_id

    def new_id(self) -> str:
        """It begins with its time, so that listings have an order."""
        return f"file-{int(self._now() * 1000):012x}{self._new_id()[:20]}"

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
        await self._durable.store.put_records(tenant, [as_record(file)], now=self._now())

    async def sweep(self) -> int:
        """Remove half files nobody writes any more, and files whose time is over, with a window's length to spare."""
        self._swept_at = self._clock.now()
        keep_s = self._durable.rules.retention_days * DAY_S + LONGEST_WINDOW_S
        return await asyncio.to_thread(sweep, self._folder, before=self._now() - keep_s)

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

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def check_limit(limit: object, *, most: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise InvalidRequest(f"limit must be a whole number from 1 to {most}", param="limit")


def as_record(file: FileObject) -> RecordWrite:
    body: dict[str, Any] = msgspec.to_builtins(file)
    return record(COLLECTION, file.id, body)


def _no_room(error: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"the file cannot be written: {error.strerror or error}")


async def _pieces(content: bytes | Path | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(content, bytes):
        yield content
    elif isinstance(content, Path):
        with await asyncio.to_thread(content.open, "rb") as source:
            while piece := await asyncio.to_thread(source.read, PIECE_BYTES):
                yield piece
    else:
        async for piece in content:
            yield piece
