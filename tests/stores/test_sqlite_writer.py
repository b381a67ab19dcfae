"""The one writer of a file: many callers per commit, nobody hurt by another, and clear words when the disk says no."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from conftest import Figure
from contracts.job_stage import NOW, a_job, a_key, a_record, end, found, running, state_of
from lossy_vfs import Disk, lossy_disk
from stores_under_test import new_id, nodes_of

from headgate.core.errors import KeyMismatch, StoreUnavailable
from headgate.core.job import Accepted, JobState, Settled
from headgate.core.job_rules import Completed
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import StoreHealth
from headgate.machine.clock import SystemClock
from headgate.stores.sqlite import SqliteStore

CROWD = 1000
PATIENT_S = 3.0
"""How long a caller waits at most for a locked file: two seconds for the lock, and some for the way."""
KILOBYTE = 1000


def on_a_file(path: Path, live: Callable[[SqliteStore], Awaitable[None]], *, vfs: str | None = None) -> None:
    async def main() -> None:
        store = SqliteStore(path, clock=SystemClock(), new_id=new_id, vfs=vfs)
        await store.open()
        try:
            async with asyncio.timeout(60):
                await live(store)
        finally:
            await store.aclose()

    asyncio.run(main())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process in the middle of a write."""
    other = apsw.Connection(str(path))
    other.execute("begin immediate")
    try:
        yield
    finally:
        other.execute("rollback")
        other.close()


class Commits:
    """Counts the commits of a store's writer, from inside SQLite."""

    def __init__(self) -> None:
        self.count = 0

    async def watch(self, store: SqliteStore) -> None:
        await store._writer.run("watch", lambda db: db.set_commit_hook(self._committed))
        self.count = 0

    def _committed(self) -> bool:
        self.count += 1
        return False


# ---- Group commit ----------------------------------------------------------------------------------------------------


def test_a_crowd_shares_its_commits(tmp_path: Path, figure: Figure) -> None:
    """A commit waits for the disk. A thousand callers at once must not wait for a thousand of them."""

    async def live(store: SqliteStore) -> None:
        commits = Commits()
        await commits.watch(store)
        answers = await asyncio.gather(
            *(store.accept([a_job(f"j{number}")], now=NOW) for number in range(CROWD))
        )
        assert answers == [[Accepted(f"j{number}")] for number in range(CROWD)]
        figure("commits for 1,000 concurrent submissions", f"{commits.count} (≤ {CROWD // 20})")
        assert commits.count <= CROWD // 20

    on_a_file(tmp_path / "jobs.db", live)


def test_a_crowd_shares_its_syncs(tmp_path: Path) -> None:
    """The same, counted at the disk: what costs is not the commit but the fsync."""
    with lossy_disk("counting") as disk:

        async def live(store: SqliteStore) -> None:
            before = disk.syncs
            await asyncio.gather(*(store.accept([a_job()], now=NOW) for _ in range(CROWD)))
            assert disk.syncs - before <= CROWD // 20

        on_a_file(tmp_path / "jobs.db", live, vfs="counting")


def test_a_lone_write_waits_for_nobody(tmp_path: Path) -> None:
    """One commit each, at once: there is no timer that gathers a crowd."""

    async def live(store: SqliteStore) -> None:
        commits = Commits()
        await commits.watch(store)
        for number in range(5):
            await store.accept([a_job()], now=NOW)
            assert commits.count == number + 1

    on_a_file(tmp_path / "jobs.db", live)


def test_many_kinds_of_verbs_share_a_commit(tmp_path: Path) -> None:
    """Workers settle while callers submit; the disk need not know the difference."""

    async def live(store: SqliteStore) -> None:
        claims = [await running(store, f"r{number}") for number in range(20)]
        commits = Commits()
        await commits.watch(store)
        await asyncio.gather(
            *(store.accept([a_job()], now=NOW) for _ in range(20)),
            *(end(store, claim, Completed(b"1")) for claim in claims),
            *(store.save_progress("r0", 1, progress=b"1") for _ in range(20)),
            *(store.renew("n1") for _ in range(20)),
        )
        assert commits.count <= 4

    on_a_file(tmp_path / "jobs.db", live)


def test_a_long_batch_is_cut_so_that_the_first_need_not_wait_for_the_last(tmp_path: Path) -> None:
    """Ten imports of thousands of jobs arrive together: the first is answered while the others are being written."""

    async def live(store: SqliteStore) -> None:
        commits, order = Commits(), []
        await commits.watch(store)

        async def submit(number: int) -> None:
            await store.accept([a_job() for _ in range(4000)], now=NOW)
            order.append((number, commits.count))

        await asyncio.gather(*(submit(number) for number in range(8)))
        assert [number for number, _ in order] == list(range(8))
        assert order[0][1] < order[-1][1], "the first was answered only when all were done"

    on_a_file(tmp_path / "jobs.db", live)


# ---- Nobody is hurt by another -----------------------------------------------------------------------------------------


def test_one_that_fails_halfway_hurts_nobody(tmp_path: Path) -> None:
    """It had written already when it failed: what it wrote is taken back, what the others wrote is not."""

    async def live(store: SqliteStore) -> None:
        await store.accept([a_job("first", key=a_key(body=b"1"))], now=NOW)
        claim = await running(store, "r")
        answers = await asyncio.gather(
            *(store.accept([a_job(f"a{number}")], now=NOW) for number in range(20)),
            store.accept([a_job("half"), a_job("wrong", key=a_key(body=b"2"))], now=NOW),
            end(store, claim, Completed(b"1")),
            *(store.accept([a_job(f"b{number}")], now=NOW) for number in range(20)),
            return_exceptions=True,
        )
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        assert [type(error) for error in failed] == [KeyMismatch]
        assert Settled.APPLIED in answers
        listed = {job.id for job in await store.select(JobFilter(), limit=CROWD)}
        assert listed == {"first", "r", *(f"{half}{number}" for half in "ab" for number in range(20))}

    on_a_file(tmp_path / "jobs.db", live)


def test_the_writer_outlives_every_mistake(tmp_path: Path) -> None:
    """Alone in its transaction, failing after a write: once, this was the end of the writer and of everybody's answers."""

    async def live(store: SqliteStore) -> None:
        def breaks(db: apsw.Connection) -> None:
            db.execute("delete from nodes where id = 'nobody'")
            db.execute("insert into nodes (id) values ('half')")
            raise ZeroDivisionError

        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await store._writer.run("broken", breaks)
            assert await nodes_of(store) == []
            assert len(await store.accept([a_job()], now=NOW)) == 1
        assert health(store) is StoreHealth.OK, "a caller's mistake is not the store's trouble"

    on_a_file(tmp_path / "jobs.db", live)


# ---- A locked file -------------------------------------------------------------------------------------------------------


def test_a_locked_file_is_told_in_time_and_heals_by_itself(tmp_path: Path) -> None:
    """Somebody left a shell open amid a write: callers hear of it within seconds, and nothing needs a restart."""
    path, told = tmp_path / "jobs.db", []

    async def live(store: SqliteStore) -> None:
        store.on_health(lambda health, why: told.append((health, why)))
        await store.accept([a_job("before")], now=NOW)
        with locked(path):
            begun = time.monotonic()
            with pytest.raises(StoreUnavailable, match="another process keeps it locked") as refusal:
                await store.accept([a_job("during")], now=NOW)
            assert time.monotonic() - begun < PATIENT_S
            assert refusal.value.retry_after_s > 0
            assert health(store) is StoreHealth.DOWN
            assert await state_of(store, "before") is JobState.PENDING, "looking needs no lock"
        assert await store.accept([a_job("after")], now=NOW) == [Accepted("after")]
        assert health(store) is StoreHealth.OK
        assert await store.find("during") is None
        await asyncio.sleep(0)

    on_a_file(path, live)
    assert [health for health, _ in told] == [StoreHealth.DOWN, StoreHealth.OK]
    assert "locked" in told[0][1]


def test_a_short_lock_is_waited_for(tmp_path: Path) -> None:
    """Another process's commit takes a moment; that is no trouble worth telling."""
    path = tmp_path / "jobs.db"

    async def live(store: SqliteStore) -> None:
        with locked(path):
            asked = asyncio.ensure_future(store.accept([a_job()], now=NOW))
            await asyncio.sleep(0.3)
        assert len(await asked) == 1
        assert health(store) is StoreHealth.OK

    on_a_file(path, live)


def test_a_crowd_before_a_locked_file_is_refused_together(tmp_path: Path) -> None:
    """Not one after the other: the hundredth would wait for minutes. Late-comers wait for one more round."""
    path = tmp_path / "jobs.db"

    async def live(store: SqliteStore) -> None:
        with locked(path):
            begun = time.monotonic()
            early = [asyncio.ensure_future(store.accept([a_job()], now=NOW)) for _ in range(50)]
            await asyncio.sleep(0.2)
            late = [asyncio.ensure_future(store.accept([a_job()], now=NOW)) for _ in range(50)]
            answers = await asyncio.gather(*early, *late, return_exceptions=True)
            assert {type(answer) for answer in answers} == {StoreUnavailable}
            assert time.monotonic() - begun < 2 * PATIENT_S

    on_a_file(path, live)


# ---- A full disk ----------------------------------------------------------------------------------------------------------


async def set_bound(store: SqliteStore, pages: int) -> None:
    await store._writer.run("bound", lambda db: db.pragma("max_page_count", pages))


async def fill(store: SqliteStore) -> list[str]:
    """Submit until the disk says no; tells which were taken."""
    kept: list[str] = []
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await _submit_big_ones(store, kept)
    return kept


async def _submit_big_ones(store: SqliteStore, kept: list[str]) -> None:
    for number in range(CROWD):
        name = f"j{number:04}"
        await store.accept([a_job(name, input=b'"' + b"x" * 20 * KILOBYTE + b'"')], now=NOW)
        kept.append(name)


def health(store: SqliteStore) -> StoreHealth:
    """Asked anew each time; a type checker believes that it never changes."""
    return store.health


async def check_after(store: SqliteStore, kept: list[str]) -> None:
    """What was answered is there, what was refused is not, and the file is sound."""
    assert [job.id for job in await store.select(JobFilter(), limit=CROWD)] == kept[::-1]
    assert await store._reader.run(lambda db: db.pragma("integrity_check")) == "ok"


def test_a_full_database_is_told_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """A quota of SQLite's own: the transaction that did not fit is taken back whole."""

    async def live(store: SqliteStore) -> None:
        pages = await store._reader.run(lambda db: db.pragma("page_count"))
        await set_bound(store, pages + 50)
        kept = await fill(store)
        assert kept
        assert health(store) is StoreHealth.DOWN
        await check_after(store, kept)
        await store._writer.run("room", lambda db: db.pragma("max_page_count", 10**6))
        await store.accept([a_job("room")], now=NOW)
        assert health(store) is StoreHealth.OK
        await check_after(store, [*kept, "room"])

    on_a_file(tmp_path / "jobs.db", live)


def test_a_full_device_is_told_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """The file system has no room for the log: callers are refused, jobs that run keep their claims."""
    with lossy_disk("small") as disk:
        on_a_file(tmp_path / "jobs.db", lambda store: _fill_the_device(store, disk), vfs="small")


async def _fill_the_device(store: SqliteStore, disk: Disk) -> None:
    claim = await running(store, "r")
    disk.full = True
    for _ in range(3):
        answers = await asyncio.gather(
            store.accept([a_job(records=(a_record("x"),))], now=NOW),
            end(store, claim, Completed(b"1")),
            return_exceptions=True,
        )
        assert {type(answer) for answer in answers} == {StoreUnavailable}
    assert health(store) is StoreHealth.DOWN
    assert (await found(store, "r")).state is JobState.RUNNING
    disk.full = False
    assert await end(store, claim, Completed(b"1")) is Settled.APPLIED
    assert health(store) is StoreHealth.OK
    assert [job.id for job in await store.select(JobFilter(), limit=9)] == ["r"]
    assert await store._reader.run(lambda db: db.pragma("integrity_check")) == "ok"


def test_a_store_where_nothing_lasts_keeps_every_promise_but_the_disk_s(tmp_path: Path) -> None:
    """Plans run on it: it never waits for the disk, who fails is told, and nobody else is hurt."""

    async def main(disk: Disk) -> None:
        store = SqliteStore(
            tmp_path / "plan.db", clock=SystemClock(), new_id=new_id, vfs="counting", lasting=False
        )
        with pytest.raises(StoreUnavailable, match="not open"):
            await store.accept([a_job()], now=NOW)
        await store.open()
        before = disk.syncs
        claim = await running(store, "r1", key=a_key())
        with pytest.raises(KeyMismatch):
            await store.accept([a_job("r2", key=a_key(body=b"another"))], now=NOW)
        assert await end(store, claim, Completed(b"1")) is Settled.APPLIED
        assert await state_of(store, "r1") is JobState.COMPLETED
        assert disk.syncs == before
        await store.aclose()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.accept([a_job()], now=NOW)

    with lossy_disk("counting") as disk:
        asyncio.run(main(disk))
