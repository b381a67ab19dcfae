"""SQLite's log (`-wal`) and its index (`-shm`) removed, replaced or emptied in use: noticed at once, and nothing accepted is lost."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import apsw
import pytest
from contracts.job_stage import NOW, a_job
from stores_under_test import new_id

from headgate.core.errors import SettingsError, StoreUnavailable
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import StoreHealth
from headgate.machine.clock import SystemClock
from headgate.machine.sqlite.place import Place
from headgate.stores.sqlite import SqliteStore

ACCEPTED = 10
REFUSED = r"jobs\.db-(wal|shm) was removed, emptied or replaced while in use"


def a_store(path: Path) -> SqliteStore:
    return SqliteStore(path, clock=SystemClock(), new_id=new_id)


def on_a_file(path: Path, live: Callable[[SqliteStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = a_store(path)
        await store.open()
        try:
            async with asyncio.timeout(60):
                await live(store)
        finally:
            await store.aclose()

    asyncio.run(main())


async def accept(store: SqliteStore, *names: str) -> None:
    for name in names:
        await store.accept([a_job(name)], now=NOW)


async def ids_in(store: SqliteStore) -> set[str]:
    return {job.id for job in await store.select(JobFilter(), limit=1_000_000)}


def names(prefix: str = "job") -> list[str]:
    return [f"{prefix}-{number}" for number in range(ACCEPTED)]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - what it waits for happens in another thread or process
            await asyncio.sleep(0.01)


def after_a_restart(path: Path) -> set[str]:
    found: list[set[str]] = []

    async def look(store: SqliteStore) -> None:
        found.append(await ids_in(store))

    on_a_file(path, look)
    return found[0]


# ---- The ways to lose it ---------------------------------------------------------------------------------------------


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _index(path: Path) -> Path:
    return path.with_name(f"{path.name}-shm")


def _remove_the_log(path: Path) -> None:
    _log(path).unlink()


def _remove_the_index(path: Path) -> None:
    _index(path).unlink()


def _remove_both(path: Path) -> None:
    _log(path).unlink()
    _index(path).unlink()


def _replace_the_log(path: Path) -> None:
    empty = path.with_name("empty")
    empty.touch()
    empty.replace(_log(path))


WAYS = [_remove_the_log, _remove_the_index, _remove_both, _replace_the_log]


@pytest.mark.parametrize("spoil", WAYS)
def test_what_was_accepted_into_a_lost_log_is_there_after_a_restart(
    spoil: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the handles that are still open have it. New work is refused, and each refusal says what to do."""
    path = tmp_path / "jobs.db"

    async def live(store: SqliteStore) -> None:
        await accept(store, *names())
        spoil(path)
        for name in names("late"):
            with pytest.raises(StoreUnavailable, match=REFUSED) as refusal:
                await store.accept([a_job(name)], now=NOW)
            assert not refusal.value.waiting_helps
        with pytest.raises(StoreUnavailable, match=REFUSED):
            await store.find("job-0")
        assert (store.health, store.files_removed) == (StoreHealth.DOWN, True)

    on_a_file(path, live)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "stop all processes that use the database, then start them again" in record.getMessage()
    assert "what was accepted before is saved" in caplog.text
    assert after_a_restart(path) == set(names())


@pytest.mark.parametrize("spoil", WAYS)
def test_a_log_that_is_lost_while_idle_is_noticed_and_saved_without_a_request(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    """The process may be killed before anything is asked of it."""
    path = tmp_path / "jobs.db"

    async def live(store: SqliteStore) -> None:
        await accept(store, *names())
        spoil(path)
        await until(lambda: store.health is StoreHealth.DOWN)
        assert await asyncio.to_thread(after_a_restart, path) == set(names())

    on_a_file(path, live)


def test_readers_alone_notice_it_too(tmp_path: Path) -> None:
    """A look must not open a fresh, empty log beside the open one."""
    path = tmp_path / "jobs.db"

    async def live(store: SqliteStore) -> None:
        await accept(store, *names())
        _remove_the_log(path)
        with pytest.raises(StoreUnavailable, match=REFUSED):
            await ids_in(store)
        assert not _log(path).exists()
        await until(lambda: store.health is StoreHealth.DOWN)

    on_a_file(path, live)
    assert after_a_restart(path) == set(names())


def _empty_the_log(path: Path) -> None:
    os.truncate(_log(path), 0)


def _cut_the_log(path: Path) -> None:
    os.truncate(_log(path), _log(path).stat().st_size // 2)


@pytest.mark.parametrize("spoil", [_empty_the_log, _cut_the_log])
@pytest.mark.parametrize("idle", [False, True])
def test_a_log_that_was_emptied_in_place_is_saved_from_the_writers_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], None], idle: bool
) -> None:
    """To go on would write behind a hole, and the hole would be copied into the database file."""
    path = tmp_path / "jobs.db"

    async def live(store: SqliteStore) -> None:
        await accept(store, *names())
        assert await ids_in(store) == set(names())
        spoil(path)
        if idle:
            await until(lambda: store.health is StoreHealth.DOWN)
        with pytest.raises(StoreUnavailable, match=REFUSED):
            await store.accept([a_job()], now=NOW)

    on_a_file(path, live)
    assert "what was accepted before is saved" in caplog.text
    assert after_a_restart(path) == set(names())


def test_what_cannot_be_saved_is_reported_as_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another process wrote last, so its pages are in nobody's memory here."""
    path = tmp_path / "jobs.db"

    async def live(store: SqliteStore) -> None:
        await accept(store, "mine")
        async with _another(path) as other:
            assert other.stdout is not None
            assert await other.stdout.readline()
            other.send_signal(signal.SIGSTOP)
            _empty_the_log(path)
            with pytest.raises(StoreUnavailable, match=REFUSED):
                await store.accept([a_job()], now=NOW)
            other.kill()

    on_a_file(path, live)
    assert "lost, restore a backup" in caplog.text

    async def goes_on(store: SqliteStore) -> None:
        await accept(store, "new")
        assert "new" in await ids_in(store)

    on_a_file(path, goes_on)


def test_a_log_that_another_program_has_emptied_into_the_database_is_no_loss(tmp_path: Path) -> None:
    """`sqlite3 jobs.db "pragma wal_checkpoint(truncate)"` is a usual thing to do."""
    path = tmp_path / "jobs.db"
    script = (
        "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.set_busy_timeout(5000);"
        " print(c.execute('pragma wal_checkpoint(truncate)').fetchall())"
    )

    async def live(store: SqliteStore) -> None:
        await accept(store, *names())
        ended = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", script, os.fspath(path)], capture_output=True, check=True
        )
        assert ended.stdout.startswith(b"[(0,")
        assert _log(path).stat().st_size == 0
        await accept(store, *names("more"))
        assert await ids_in(store) == {*names(), *names("more")}
        assert store.health is StoreHealth.OK

    on_a_file(path, live)


# ---- Several processes -----------------------------------------------------------------------------------------------

_OTHER = """
import asyncio, sys
from pathlib import Path
from contracts.job_stage import NOW, a_job
from headgate.core.errors import StoreUnavailable
from headgate.machine.clock import SystemClock
from headgate.stores.sqlite import SqliteStore
from stores_under_test import new_id

async def main():
    store = SqliteStore(Path(sys.argv[1]), clock=SystemClock(), new_id=new_id)
    await store.open()
    number = 0
    refused = False
    while not refused:
        try:
            await store.accept([a_job(f"other-{number}")], now=NOW)
        except StoreUnavailable as error:
            assert not error.waiting_helps, error
            refused = True
        else:
            print(f"other-{number}", flush=True)
            number += 1
    print("refused", flush=True)
    sys.stdin.readline()
    await store.aclose()

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def _another(path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that accepts jobs into the same file, says their names, and stops at the first refusal."""
    other = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _OTHER,
        os.fspath(path),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.fspath, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield other
    finally:
        if other.returncode is None:
            other.kill()
        await other.wait()


@pytest.mark.parametrize("spoil", WAYS)
def test_two_processes_lose_nothing_that_either_accepted(
    spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    """Both write all the time; both notice, save and stop. A process that starts meanwhile begins with all of it."""
    path = tmp_path / "jobs.db"
    told: list[str] = []
    seen: list[set[str]] = []

    async def live(store: SqliteStore) -> None:
        await accept(store, "first")
        async with _another(path) as other:
            await beside(store, other)

    async def beside(store: SqliteStore, other: asyncio.subprocess.Process) -> None:
        assert other.stdout is not None
        assert other.stdin is not None
        for number in range(200):
            await accept(store, f"mine-{number}")
            told.append(f"mine-{number}")
        told.append((await other.stdout.readline()).decode().strip())
        spoil(path)
        with contextlib.suppress(StoreUnavailable):
            for number in range(200, 100_000):
                await accept(store, f"mine-{number}")
                told.append(f"mine-{number}")
        assert store.files_removed
        while (line := await other.stdout.readline()) != b"refused\n":
            assert line, "the other process ended"
            told.append(line.decode().strip())
        seen.append(await asyncio.to_thread(after_a_restart, path))
        other.stdin.close()
        assert await other.wait() == 0

    on_a_file(path, live)
    assert any(name.startswith("other") for name in told)
    for found in (seen[0], after_a_restart(path)):
        assert not {"first", *told} - found


def test_a_process_that_starts_beside_a_lost_log_refuses_it(tmp_path: Path) -> None:
    """The index says what the log holds; where the log does not hold it, somebody has removed it."""
    path = tmp_path / "jobs.db"

    async def live(store: SqliteStore) -> None:
        await accept(store, *names())
        # Held still, so that it cannot save anything before the other one looks.
        async with _held(store):
            _remove_the_log(path)
            with pytest.raises(SettingsError, match="stop all processes"):
                await asyncio.to_thread(after_a_restart, path)
        await until(lambda: store.health is StoreHealth.DOWN)

    on_a_file(path, live)
    assert after_a_restart(path) == set(names())


@contextlib.asynccontextmanager
async def _held(store: SqliteStore) -> AsyncIterator[None]:
    """The writer's thread is inside an operation until this ends."""
    entered, leave = threading.Event(), threading.Event()

    def hold(_connection: object) -> None:
        entered.set()
        leave.wait(30)

    held = asyncio.ensure_future(store._writer.run("hold", hold))
    await asyncio.to_thread(entered.wait, 30)
    try:
        yield
    finally:
        leave.set()
        with pytest.raises(StoreUnavailable):
            await held


LOCKS_OF_THE_INDEX = """
import fcntl, sys, time
index = open(sys.argv[1], "r+b")
fcntl.lockf(index, fcntl.LOCK_EX, 8, 120)
index.write(bytes(96))
index.flush()
print("locked", flush=True)
time.sleep(60)
"""
"""Where SQLite keeps them in `-shm`. A process that finds the index broken after a kill holds them while it makes it again."""


def test_a_look_at_the_log_waits_for_no_lock(tmp_path: Path) -> None:
    """It must not take the work of another process for trouble: the transaction that follows waits its turn."""
    path = tmp_path / "jobs.db"
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.execute("create table t (a)")
    place = Place(path)
    place.check(connection)
    other = subprocess.Popen(
        [sys.executable, "-c", LOCKS_OF_THE_INDEX, f"{path}-shm"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        place.check(connection)
    finally:
        other.kill()
        other.communicate()
        place.close(connection)
