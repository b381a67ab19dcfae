"""A database that cannot be used: whose mistake it is, where it lies, and what to do; never a traceback."""

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import asyncpg  # type: ignore[import-untyped]
import pytest
from cli.command_stage import Desk
from postgres import Server

COMMANDS = [("jobs", "list"), ("jobs", "submit", "echo", "1"), ("work", "--burst")]


@pytest.fixture
def database(desk: Desk) -> Path:
    """The desk's, with a job in it."""
    desk.submit("echo", 1)
    return desk.folder / "data" / "headgate.db"


# ---- Mistakes of the operator ----------------------------------------------------------------------------------------


def _text(path: Path) -> None:
    path.write_text("dear diary\n" * 1000)


def _damaged_at_the_top(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + os.urandom(20_000))


def _damaged_inside(path: Path) -> None:
    """The first page is whole: it opens, and breaks at the first look."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _another_programs(path: Path) -> None:
    path.unlink()
    connection = apsw.Connection(str(path))
    connection.execute("create table photos (title text)")
    connection.close()


def _from_the_future(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("pragma user_version = 99")
    connection.close()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_text, "is no database; set another data_dir"),
        (_damaged_at_the_top, "is no database; set another data_dir"),
        (_damaged_inside, "is damaged; restore it from a backup"),
        (_folder, "is a folder, not a file; move it away"),
        (_another_programs, "is another program's database; set another data_dir"),
        (_from_the_future, "Upgrade headgate"),
    ],
)
def test_a_file_that_cannot_be_ours_is_the_operators_to_mend(
    spoil: Callable[[Path], None], told: str, words: tuple[str, ...], desk: Desk, database: Path
) -> None:
    """The same again fails again, in five seconds too."""
    spoil(database)
    answer = desk.run(*words)
    assert (answer.code, answer.out) == (2, "")
    assert "data/headgate.db" in answer.err
    assert told in answer.err
    assert "try again" not in answer.err


def test_another_programs_tables_stay_alone(desk: Desk, database: Path) -> None:
    """Ours beside theirs would be a mess that nobody asked for."""
    _another_programs(database)
    assert desk.run("jobs", "list").code == 2
    connection = apsw.Connection(str(database))
    assert connection.execute("select name from sqlite_master").fetchall() == [("photos",)]
    connection.close()


# ---- What passes -------------------------------------------------------------------------------------------------------


def test_a_locked_file_is_exit_code_4_with_its_path_and_cause(desk: Desk, database: Path) -> None:
    other = apsw.Connection(str(database))
    other.execute("begin immediate")
    answer = desk.run("jobs", "submit", "echo", "1")
    other.execute("rollback")
    other.close()
    assert answer.code == 4
    assert "data/headgate.db: another process keeps it locked" in answer.err
    assert "try again in" in answer.err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, one megabyte large."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(mounting, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fill(disk: Path, *, leave_bytes: int = 0) -> None:
    room = os.statvfs(disk)
    (disk / "ballast").write_bytes(b"x" * (room.f_bavail * room.f_frsize - leave_bytes))


def _settle_on(disk: Path, desk: Desk, limits: str = "min_free_bytes: 0") -> None:
    """The disk is smaller than the room that is kept free by default."""
    (desk.folder / "headgate.yaml").write_text(
        f"data_dir: {disk}/data\njobs: {{tasks: [cli_tasks]}}\nlimits: {{{limits}}}\n"
    )


@pytest.mark.parametrize("leave_bytes", [0, 8_192, 60_000])
@pytest.mark.parametrize("begun", [True, False], ids=["begun", "new"])
def test_a_full_disk_is_exit_code_4_and_said_to_be_full(
    begun: bool, leave_bytes: int, desk: Desk, small_disk: Path
) -> None:
    """SQLite may only say `disk I/O error` then: nobody would think of looking for room."""
    _settle_on(small_disk, desk)
    if begun:
        desk.submit("echo", 1)
    _fill(small_disk, leave_bytes=leave_bytes)
    answer = desk.run("jobs", "submit", "echo", '"' + "x" * 100_000 + '"')
    assert answer.code == 4
    assert "data/headgate.db: the disk is full" in answer.err
    assert "try again in" in answer.err


def test_a_full_disk_can_be_looked_at(desk: Desk, small_disk: Path) -> None:
    """Who wants to know what is stuck has no room to make first."""
    _settle_on(small_disk, desk)
    job_id = desk.submit("echo", 1)
    _fill(small_disk)
    answer = desk.run("jobs", "list")
    assert answer.code == 0, answer.err
    assert job_id in answer.out


def test_a_nearly_full_disk_is_exit_code_4_with_the_limit_that_refuses(desk: Desk, small_disk: Path) -> None:
    """With the default settings a gigabyte stays free. Jobs that were accepted before are listed and run."""
    _settle_on(small_disk, desk)
    job_id = desk.submit("echo", 1)
    _settle_on(small_disk, desk, limits="")
    answer = desk.run("jobs", "submit", "echo", "1")
    assert (answer.code, answer.out) == (4, "")
    (message,) = [line for line in answer.err.splitlines() if line.startswith("headgate: ")]
    assert f"headgate: {small_disk}/data has " in message
    assert "less than limits.min_free_bytes (1,073,741,824)" in message
    assert "Make room, or lower the limit" in message
    assert answer.err.endswith("(headgate doctor says what is wrong), then try again in 30 s.\n")

    advice = "make room, or lower limits.min_free_bytes (1,073,741,824)"
    assert advice in " ".join(desk.run("doctor").out.split())
    assert desk.run("work", "--burst").code == 0
    listed = desk.run("jobs", "list")
    assert job_id in listed.out
    assert "completed" in listed.out


def _remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def test_a_read_only_disk_can_be_looked_at(desk: Desk, small_disk: Path) -> None:
    """A snapshot, or the disk of a machine that died: looking needs no writing."""
    _settle_on(small_disk, desk)
    job_id = desk.submit("echo", 1)
    _remount(small_disk, "ro")
    try:
        listed, shown, submitted = (
            desk.run("jobs", "list"),
            desk.run("jobs", "show", job_id),
            desk.run("jobs", "submit", "echo", "1"),
        )
    finally:
        _remount(small_disk, "rw")
    assert (listed.code, shown.code, submitted.code) == (0, 0, 4)
    assert job_id in listed.out
    assert job_id in shown.out
    assert "data/headgate.db: the file or its folder is read-only" in submitted.err


@pytest.mark.parametrize("command", ["serve", "work"])
def test_who_stays_on_a_read_only_disk_is_told_that_it_is_read_only(
    command: str, desk: Desk, small_disk: Path
) -> None:
    """Not a mistake in the settings: once the disk can be written, the same again works."""
    _settle_on(small_disk, desk)
    desk.submit("echo", 1)
    _remount(small_disk, "ro")
    try:
        ended = desk.run(command, *(["--listen", "127.0.0.1:0"] if command == "serve" else []))
    finally:
        _remount(small_disk, "rw")
    assert ended.code == 4, ended.err
    (told,) = [line for line in ended.err.splitlines() if line.startswith("headgate: ")]
    assert "read-only" in told.lower()
    assert "Errno" not in told


def test_a_read_only_disk_with_an_open_log_says_what_to_do(desk: Desk, small_disk: Path) -> None:
    """Its last jobs are in the log beside it: to leave them out would be to lie."""
    _settle_on(small_disk, desk)
    desk.submit("echo", 1)
    data = small_disk / "data"
    (data / "headgate.db-wal").write_bytes(b"x" * 4096)
    _remount(small_disk, "ro")
    try:
        answer = desk.run("jobs", "list")
    finally:
        _remount(small_disk, "rw")
    assert answer.code == 4
    assert "data/headgate.db: its last changes are in the log beside it" in answer.err
    assert "copy the folder elsewhere" in answer.err


# ---- PostgreSQL ----------------------------------------------------------------------------------------------------------


async def _run_there(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


def _use(desk: Desk, url: str) -> None:
    (desk.folder / "headgate.yaml").write_text(
        f"database: {url}\ndata_dir: data\njobs: {{tasks: [cli_tasks]}}\n"
    )


@pytest.fixture
def small_user(desk: Desk, postgres_server: Server) -> Iterator[str]:
    """The URL of a user who may connect, and nothing else, to a database that is in use."""
    _use(desk, url := postgres_server.clear())
    desk.submit("echo", 1)
    asyncio.run(_run_there(url, "drop role if exists small", "create role small login"))
    try:
        yield url.replace("//postgres@", "//small@")
    finally:
        asyncio.run(_run_there(url, "drop owned by small", "drop role small"))


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize(
    "granted",
    [
        (),
        ("grant usage on schema headgate to small",),
        (
            "grant usage on schema headgate to small",
            "grant select on headgate.migrations, headgate.secrets to small",
        ),
    ],
    ids=["nothing", "schema", "start"],
)
def test_a_user_without_the_right_is_the_operators_to_mend(
    granted: tuple[str, ...], words: tuple[str, ...], desk: Desk, postgres_server: Server, small_user: str
) -> None:
    """Whether it shows at the start or at the first look."""
    asyncio.run(_run_there(postgres_server.url, *granted))
    _use(desk, small_user)
    answer = desk.run(*words)
    assert answer.code == 2, answer.err
    assert "permission denied" in answer.err
    assert "small@127.0.0.1" in answer.err
    assert "try again" not in answer.err


def test_a_wrong_password_is_the_operators_to_mend(desk: Desk, postgres_server: Server) -> None:
    url = postgres_server.clear()
    rules = postgres_server.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    asyncio.run(_run_there(url, "create role guarded login password 'right'"))
    rules.write_text(f"host all guarded all scram-sha-256\n{before}")
    asyncio.run(_run_there(url, "select pg_reload_conf()"))
    try:
        _use(desk, url.replace("//postgres@", "//guarded:wrong@"))
        answer = desk.run("jobs", "list")
    finally:
        rules.write_text(before)
        asyncio.run(_run_there(url, "select pg_reload_conf()", "drop role guarded"))
    assert answer.code == 2
    assert "password authentication failed" in answer.err
    assert "wrong" not in answer.err
    assert "try again" not in answer.err
