"""Files: on the disk before anybody is told so, one tenant's only, gone when their time is over."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from batches.lines import CHAT, jsonl, read
from jobstage import JobStages, on_job_stages

from headgate.core.errors import InvalidRequest, PayloadTooLarge, StateConflict, StoreUnavailable, UnknownFile

DAY_S = 86_400.0


@on_job_stages
async def test_a_file_is_there_byte_for_byte(stages: JobStages, tmp_path: Path) -> None:
    files = (await stages.open(work=False)).gateway.files
    source = tmp_path / "in.jsonl"
    source.write_bytes(os.urandom(3_000_000))

    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    copied = await files.create(source)
    given = await files.create(b"whole", filename="x")
    streamed = await files.create(pieces())
    assert (await files.content(copied.id)).read_bytes() == source.read_bytes()
    assert (await files.content(streamed.id)).read_bytes() == b"ab"
    assert (copied.filename, given.filename, streamed.filename) == ("in.jsonl", "x", "batch.jsonl")
    assert (given.bytes, given.purpose, given.status) == (5, "batch", "processed")
    assert await files.get(given.id) == given
    assert [one.id for one in await files.list()] == [streamed.id, given.id, copied.id]


@on_job_stages
async def test_pages_of_files_go_on_where_the_last_ended(stages: JobStages) -> None:
    files = (await stages.open(work=False)).gateway.files
    made = [(await files.create(b"x")).id for _ in range(5)]
    first = await files.list(limit=2)
    rest = await files.list(limit=5, after=first[-1].id)
    assert [one.id for one in (*first, *rest)] == made[::-1]
    assert await files.list(purpose="batch_output") == []
    for wrong in ({"limit": 0}, {"after": "../etc"}):
        with pytest.raises(InvalidRequest):
            await files.list(**wrong)


@on_job_stages
async def test_a_file_that_was_not_kept_leaves_nothing(stages: JobStages) -> None:
    files = (await stages.open(work=False, limits={"file_bytes": 10})).gateway.files
    with pytest.raises(PayloadTooLarge):
        await files.create(b"x" * 11)
    with pytest.raises(InvalidRequest):
        await files.create(b"x", purpose="fine-tune")
    with pytest.raises(InvalidRequest):
        await files.create(b"x", filename="\x1b[2J")

    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await files.create(broken())
    assert await files.list() == []
    assert list((stages.folder / "files").iterdir()) == []


@on_job_stages
async def test_an_id_that_is_a_path_is_an_unknown_file(stages: JobStages) -> None:
    files = (await stages.open(work=False)).gateway.files
    for odd in ("../headgate.db", "file-", "", "file-0123456789ab/x", ".part-1"):
        with pytest.raises(UnknownFile):
            await files.content(odd)


@on_job_stages
async def test_half_files_of_the_dead_are_removed_and_those_of_the_living_are_not(stages: JobStages) -> None:
    folder = stages.folder / "files"
    folder.mkdir(parents=True)
    (folder / ".part-dead").write_bytes(b"half")
    living = folder / ".part-living"
    living.write_bytes(b"half")
    with living.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        await stages.open()
        assert [one.name for one in folder.iterdir()] == [".part-living"]


@on_job_stages
async def test_a_file_is_kept_as_long_as_jobs_are(stages: JobStages) -> None:
    stage = await stages.open(jobs={"retention_days": 2}, work=False)
    files = stage.gateway.files
    file = await files.create(b"x")
    assert file.expires_at - file.created_at == 2 * DAY_S
    await stage.world.clock.sleep(2 * DAY_S + 1)
    with pytest.raises(UnknownFile):
        await files.get(file.id)
    assert await files.list() == []
    assert await stage.gateway.records.list("files") == []
    old = stage.epoch - 10 * DAY_S
    os.utime(files.path(file.id), (old, old))
    assert await files.sweep() == 1


@on_job_stages
async def test_a_file_that_a_batch_reads_cannot_be_deleted(stages: JobStages) -> None:
    stage = await stages.open({"latency_s": 0.0}, work=False)
    files, batches = stage.gateway.files, stage.gateway.batches
    file = await files.create(jsonl(range(2)))
    batch = (await batches.create(input_file_id=file.id, endpoint=CHAT)).batch
    with pytest.raises(StateConflict, match="in use"):
        await files.delete(file.id)
    await stage.gateway.work()
    over = await batches.wait(batch.id)
    await files.delete(file.id)
    assert not files.path(file.id).exists()
    with pytest.raises(UnknownFile):
        await files.delete(file.id)
    assert over.output_file_id is not None
    assert (await files.get(over.output_file_id)).purpose == "batch_output"
    with pytest.raises(InvalidRequest, match="batch_output"):
        await batches.create(input_file_id=over.output_file_id, endpoint=CHAT)


@on_job_stages
async def test_a_batch_waits_for_bytes_that_are_not_here(stages: JobStages) -> None:
    """On a node with another data_dir it does not fail: one that has the file goes on."""
    stage = await stages.open({"latency_s": 0.0}, work=False)
    file = await stage.gateway.files.create(jsonl(range(2)))
    path = stage.gateway.files.path(file.id)
    away = path.rename(path.with_name("away"))
    batch = (await stage.gateway.batches.create(input_file_id=file.id, endpoint=CHAT)).batch
    await stage.gateway.work()
    await stage.world.clock.sleep(60.0)
    assert (await stage.gateway.batches.get(batch.id)).status == "validating"
    with pytest.raises(StateConflict, match="not on this machine"):
        await stage.gateway.files.content(file.id)
    away.rename(path)
    assert (await stage.gateway.batches.wait(batch.id)).request_counts.completed == 2


@on_job_stages
async def test_a_batch_whose_bytes_are_lost_can_be_cancelled_and_its_file_deleted(stages: JobStages) -> None:
    """Stopping needs no bytes: who has lost them is not left with a batch that never ends."""
    stage = await stages.open({"latency_s": 0.0}, work=False)
    file = await stage.gateway.files.create(jsonl(range(2)))
    stage.gateway.files.path(file.id).unlink()
    batch = (await stage.gateway.batches.create(input_file_id=file.id, endpoint=CHAT)).batch
    await stage.gateway.work()
    await stage.world.clock.sleep(60.0)
    assert (await stage.gateway.batches.cancel(batch.id)).status == "cancelling"
    over = await stage.gateway.batches.wait(batch.id, timeout=30.0)
    assert (over.status, over.request_counts.total) == ("cancelled", 0)
    assert (over.output_file_id, over.error_file_id) == (None, None)
    await stage.gateway.files.delete(file.id)


@on_job_stages
async def test_a_cancelled_batch_that_lost_its_bytes_midway_keeps_its_answers(stages: JobStages) -> None:
    """Lines that never became jobs cannot be named without them; everything else is."""
    stage = await stages.open({"latency_s": 10.0, "slots": 2}, jobs={"max_pending_per_tenant": 7})
    file = await stage.gateway.files.create(jsonl(range(40)))
    batch = (await stage.gateway.batches.create(input_file_id=file.id, endpoint=CHAT)).batch
    await stage.world.clock.sleep(35.0)
    stage.gateway.files.path(file.id).unlink()
    await stage.gateway.batches.cancel(batch.id)
    over = await stage.gateway.batches.wait(batch.id, timeout=60.0)
    assert over.status == "cancelled"
    counts = over.request_counts
    assert counts.completed == len(await read(stage.gateway, over.output_file_id)) > 0
    assert counts.failed == len(await read(stage.gateway, over.error_file_id)) < 40 - counts.completed
    await stage.gateway.files.delete(file.id)


@on_job_stages
async def test_a_disk_that_takes_nothing_is_told_as_such(stages: JobStages) -> None:
    stage = await stages.open(work=False)
    stages.folder.mkdir(parents=True, exist_ok=True)
    (stages.folder / "files").write_bytes(b"no folder")
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await stage.gateway.files.create(b"x")


@on_job_stages
async def test_who_is_cancelled_while_uploading_leaves_nothing(stages: JobStages) -> None:
    stage = await stages.open(work=False)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000
            await stage.world.clock.sleep(1.0)

    uploading = asyncio.create_task(stage.gateway.files.create(endless()))
    await stage.world.clock.sleep(5.5)
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    assert list((stages.folder / "files").iterdir()) == []
