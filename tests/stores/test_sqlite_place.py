"""The file itself: for its owner's eyes only, still there before anything is answered, readable where nothing is written."""

import asyncio
import os
import shutil
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from contracts.job_stage import NOW, a_job, state_of
from stores_under_test import new_id

from headgate.core.errors import StoreUnavailable
from headgate.core.job import Accepted, JobState
from headgate.core.ports.store import StoreHealth
from headgate.machine.clock import SystemClock
from headgate.stores.sqlite import SqliteStore


def on_a_file(path: Path, live: Callable[[SqliteStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = SqliteStore(path, clock=SystemClock(), new_id=new_id)
        await store.open()
        try:
            async with asyncio.timeout(60):
                await live(store)
        finally:
            await store.aclose()

    asyncio.run(main())


# ---- Deleted or replaced while in use ----------------------------------------------------------------------------------


def _delete(path: Path) -> None:
    path.unlink()


def _delete_all(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def _replace_by_its_copy(path: Path) -> None:
    """A restored backup: it looks the same, and it is not what is open."""
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)


def _rename_the_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


@pytest.mark.parametrize("spoil", [_delete, _delete_all, _replace_by_its_copy, _rename_the_folder])
def test_a_file_that_is_gone_takes_nothing_more(
    spoil: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would go on taking jobs, answer that they are safe, and lose them all with the process."""
    path, told = tmp_path / "data" / "jobs.db", []

    async def live(store: SqliteStore) -> None:
        store.on_health(lambda health, why: told.append((health, why)))
        await store.accept([a_job("before")], now=NOW)
        spoil(path)
        for _ in range(3):
            with pytest.raises(
                StoreUnavailable, match=r"jobs\.db: the file was deleted or replaced"
            ) as refusal:
                await store.accept([a_job()], now=NOW)
            assert not refusal.value.waiting_helps
        with pytest.raises(StoreUnavailable, match="was deleted or replaced while in use"):
            await store.find("before")
        assert store.health is StoreHealth.DOWN
        await asyncio.sleep(0)

    there_is_one = spoil is _replace_by_its_copy
    on_a_file(path, live)
    assert [health for health, _ in told] == [StoreHealth.DOWN]
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"{path} does not work: the file was deleted or replaced while in use" in record.getMessage()
    assert "restart" in record.getMessage()
    assert "nothing accepted is lost" not in record.getMessage()
    assert path.exists() is there_is_one, "a new, empty file must not come up in its place"


def test_a_file_that_is_put_back_goes_on(tmp_path: Path) -> None:
    """A slip that was noticed in time."""
    path, aside = tmp_path / "jobs.db", tmp_path / "aside.db"

    async def live(store: SqliteStore) -> None:
        await store.accept([a_job("before")], now=NOW)
        path.rename(aside)
        with pytest.raises(StoreUnavailable):
            await store.accept([a_job("during")], now=NOW)
        aside.rename(path)
        assert await store.accept([a_job("after")], now=NOW) == [Accepted("after")]
        assert await state_of(store, "before") is JobState.PENDING
        assert store.health is StoreHealth.OK

    on_a_file(path, live)


def test_a_process_that_changes_its_folder_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task may do so; a path that was relative at the start still means the same file."""
    monkeypatch.chdir(tmp_path)

    async def live(store: SqliteStore) -> None:
        await store.accept([a_job("before")], now=NOW)
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        assert await store.accept([a_job("after")], now=NOW) == [Accepted("after")]
        assert await state_of(store, "before") is JobState.PENDING

    on_a_file(Path("data") / "jobs.db", live)


# ---- Who may read it -----------------------------------------------------------------------------------------------------


def _modes(path: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob(f"{path.name}*")}


def test_a_new_file_is_for_its_owner_only(tmp_path: Path) -> None:
    """It holds prompts; and so does the log beside it."""
    path = tmp_path / "jobs.db"

    async def live(store: SqliteStore) -> None:
        await store.accept([a_job()], now=NOW)
        assert _modes(path) == {"jobs.db": 0o600, "jobs.db-wal": 0o600, "jobs.db-shm": 0o600}

    before = os.umask(0o022)
    try:
        on_a_file(path, live)
    finally:
        os.umask(before)


def test_a_file_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    """Whoever shares it with a group has reasons."""
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o640)

    async def live(store: SqliteStore) -> None:
        await store.accept([a_job()], now=NOW)
        assert set(_modes(path).values()) == {0o640}

    on_a_file(path, live)


def test_a_link_to_a_file_that_is_still_to_be_made_is_followed(tmp_path: Path) -> None:
    """A data folder whose database lies on another disk."""
    target = tmp_path / "disk" / "real.db"
    target.parent.mkdir()
    path = tmp_path / "jobs.db"
    path.symlink_to(target)

    async def live(store: SqliteStore) -> None:
        assert await store.accept([a_job("j")], now=NOW) == [Accepted("j")]
        assert stat.S_IMODE(target.stat().st_mode) == 0o600

    on_a_file(path, live)
