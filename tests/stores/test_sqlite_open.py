"""Opening the file: made where it is missing, brought up to date once, refused with clear words where it cannot be."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import apsw
import pytest
from contracts.job_stage import NOW, a_job
from stores_under_test import new_id

from headgate.core.errors import HeadgateError, SettingsError, StoreUnavailable
from headgate.core.job import JobState
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import StoreHealth
from headgate.machine.clock import SystemClock
from headgate.stores.sqlite import SqliteStore

PROCESSES = 4
RACES = 12
NOBODY = 65534
_CHILD = """
import asyncio, os, sys, time
from pathlib import Path
from contracts.job_stage import NOW, a_job
from stores_under_test import new_id
from headgate.machine.clock import SystemClock
from headgate.stores.sqlite import SqliteStore

async def main(path, name):
    store = SqliteStore(Path(path), clock=SystemClock(), new_id=new_id)
    await store.open()
    await store.accept([a_job(name)], now=NOW)
    secret = store.secret.hex()
    await store.aclose()
    return secret

start, paths = float(sys.argv[1]), sys.argv[2:]
for number, path in enumerate(paths):
    time.sleep(max(0.0, start + number * 0.15 - time.time()))
    print(asyncio.run(main(path, f"{os.getpid()}-{number}")), flush=True)
"""


def a_store(path: Path) -> SqliteStore:
    return SqliteStore(path, clock=SystemClock(), new_id=new_id)


async def _open_and_close(path: Path) -> None:
    store = a_store(path)
    try:
        await store.open()
    finally:
        await store.aclose()


def opened(path: Path) -> None:
    asyncio.run(_open_and_close(path))


def test_the_folder_is_made_where_it_is_missing(tmp_path: Path) -> None:
    """`headgate.db` in a folder that does not exist yet is a first start, not a mistake."""
    path = tmp_path / "a" / "b" / "jobs.db"
    opened(path)

    assert path.exists()


def test_the_file_is_in_the_mode_that_survives(tmp_path: Path) -> None:
    """A write-ahead log, synced at every commit, on every connection: it is what an answer's promise rests on."""

    async def main() -> None:
        store = a_store(tmp_path / "jobs.db")
        await store.open()
        modes = [
            await run(lambda db: (db.pragma("journal_mode"), db.pragma("synchronous")))
            for run in (store._reader.run, lambda look: store._writer.run("look", look))
        ]
        await store.aclose()
        assert modes == [("wal", 2), ("wal", 2)]

    asyncio.run(main())


@pytest.mark.parametrize(
    "garbage",
    [b"hello, I am a text file\n" * 1000, os.urandom(50_000), b"SQLite format 3\x00" + b"\x01" * 5000],
)
def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path, garbage: bytes) -> None:
    """Somebody pointed us at their notes: say so, and do not write into them."""
    path = tmp_path / "jobs.db"
    path.write_bytes(garbage)

    with pytest.raises(HeadgateError, match=r"jobs\.db"):
        opened(path)

    assert path.read_bytes() == garbage


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    """`touch` makes one."""
    path = tmp_path / "jobs.db"
    path.touch()
    opened(path)

    assert path.stat().st_size > 0


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    """A slip in the settings: the message must lead to it."""
    path = tmp_path / "jobs.db"
    path.mkdir()

    with pytest.raises(HeadgateError, match=r"jobs\.db"):
        opened(path)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path, version: int) -> None:
    """It has a table called jobs, and we are not to write into it; nor to tell people of SQL."""
    path = tmp_path / "jobs.db"
    connection = apsw.Connection(str(path))
    connection.execute("create table jobs (title text); insert into jobs values ('baker')")
    connection.pragma("user_version", version)
    connection.close()

    with pytest.raises(SettingsError, match=r"jobs\.db is another program's"):
        opened(path)

    connection = apsw.Connection(str(path))
    assert connection.execute("select name from sqlite_master").fetchall() == [("jobs",)]
    assert connection.execute("select * from jobs").fetchall() == [("baker",)]
    connection.close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A downgrade by mistake must not touch what it does not understand."""
    path = tmp_path / "jobs.db"
    opened(path)
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", 99)
    connection.close()

    with pytest.raises(SettingsError, match=r"schema 99.*Upgrade headgate"):
        opened(path)

    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == 99
    connection.close()


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    """Migrations run once; the secret is drawn once; jobs stay."""
    path = tmp_path / "jobs.db"

    async def main() -> None:
        first = a_store(path)
        await first.open()
        await first.accept([a_job("j")], now=NOW)
        await first.aclose()
        second = a_store(path)
        await second.open()
        assert second.secret == first.secret
        assert await second.states(["j"]) == {"j": JobState.PENDING}
        await second.aclose()

    asyncio.run(main())


def test_processes_that_start_at_once_make_one_schema(tmp_path: Path) -> None:
    """Four workers on a new file, in the same instant, again and again: all come up, with one secret."""
    paths = [tmp_path / f"{number}" / "jobs.db" for number in range(RACES)]
    start = str(time.time() + 2.0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, start, *map(str, paths)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    told = [child.communicate(timeout=60) for child in children]

    assert [child.returncode for child in children] == [0] * PROCESSES, told
    secrets = [out.split() for out, _ in told]
    assert secrets == [secrets[0]] * PROCESSES
    assert len(set(secrets[0])) == RACES
    for path in paths:
        connection = apsw.Connection(str(path))
        assert connection.execute("select count(*) from jobs").get == PROCESSES
        connection.close()


# ---- Where nothing may be written --------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
def test_a_folder_that_cannot_be_made_is_a_mistake_in_the_settings() -> None:
    """The operator's path is wrong: that is not something to try again in five seconds."""
    with pytest.raises(SettingsError, match="headgate-no-such-folder"):
        opened(Path("/proc/headgate-no-such-folder/jobs.db"))


def _as_nobody(act: Callable[[], None]) -> str:
    """Run in a child that may not write everywhere: root may, so it becomes nobody first."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - another process
        said = "nothing"
        try:
            if os.geteuid() == 0:
                os.setegid(NOBODY)
                os.seteuid(NOBODY)
            act()
        except BaseException as error:  # noqa: BLE001 - whatever it was, the parent wants to know
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return told


@pytest.fixture
def open_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that others may enter: pytest's own are private, however deep."""
    # A checkout may be private too: what is read from it is read before somebody else tries.
    opened(tmp_path / "first.db")
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent) / "data"
        folder.mkdir()
        yield folder


def test_a_read_only_folder_is_told_as_what_it_is(open_folder: Path) -> None:
    """A volume mounted read-only, or made by another user: the path and its permissions are named."""
    open_folder.chmod(0o555)

    new = _as_nobody(lambda: opened(open_folder / "jobs.db"))

    assert new.startswith("StoreUnavailable")
    assert "jobs.db" in new
    assert "permissions" in new


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_what_may_only_be_read_can_be_looked_at(open_folder: Path, folder_mode: int) -> None:
    """Another user's file: its jobs can be listed, and nothing be added."""
    path = open_folder / "old.db"

    async def use(act: Callable[[SqliteStore], Awaitable[object]]) -> None:
        store = a_store(path)
        await store.open()
        try:
            await act(store)
        finally:
            await store.aclose()

    async def look(store: SqliteStore) -> None:
        assert [job.id for job in await store.select(JobFilter(), limit=9)] == ["j"]

    asyncio.run(use(lambda store: store.accept([a_job("j")], now=NOW)))
    path.chmod(0o444)
    open_folder.chmod(folder_mode)

    assert _as_nobody(lambda: asyncio.run(use(look))) == "nothing"
    told = _as_nobody(lambda: asyncio.run(use(lambda store: store.accept([a_job()], now=NOW))))
    assert told.startswith("StoreUnavailable")
    assert "old.db: the file or its folder is read-only; check their permissions" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="our own files are never secret to us")
def test_a_file_that_may_not_even_be_read_is_told_as_what_it_is(open_folder: Path) -> None:
    opened(open_folder / "old.db")
    open_folder.chmod(0o777)

    told = _as_nobody(lambda: opened(open_folder / "old.db"))

    assert told.startswith("StoreUnavailable")
    assert "old.db: the file cannot be opened; check the path and its permissions" in told


def test_a_folder_without_room_for_bells_is_no_obstacle(open_folder: Path) -> None:
    """The bell is a hint: where its folder cannot be made, looking every second must do."""
    open_folder.chmod(0o777)
    (open_folder / "nodes").write_text("a file where the folder should be")

    assert _as_nobody(lambda: opened(open_folder / "jobs.db")) == "nothing"


def test_damage_amid_work_is_told_and_does_not_end_the_writer(tmp_path: Path) -> None:
    """A disk that returns nonsense: callers are refused, each of them, and nobody waits for ever."""

    async def main() -> None:
        path = tmp_path / "jobs.db"
        store = a_store(path)
        await store.open()
        await store.accept([a_job() for _ in range(500)], now=NOW)
        await store._writer.run("tune", lambda db: db.wal_autocheckpoint(1))
        await store._writer.run("tune", lambda db: db.pragma("cache_size", 0))
        await store.accept([a_job("last")], now=NOW)
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(path.stat().st_size - 4096))
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="damaged"):
                await asyncio.wait_for(store.accept([a_job() for _ in range(500)], now=NOW), 10)
        assert store.health is StoreHealth.DOWN
        await store.aclose()

    asyncio.run(main())
