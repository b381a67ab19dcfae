"""Every test of the served gateway runs in one loop; what only the loop or the log could tell is a failure, too."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from server.http.front_stage import Play


def watched(
    scene: Callable[[], Coroutine[Any, Any, None]],
    run: Callable[[Coroutine[Any, Any, None]], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Run a scene in which nothing may go wrong unseen: in a forgotten task, or told only to the log."""
    troubles: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        async with asyncio.timeout(60):
            await scene()

    run(main())
    assert troubles == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.fixture
def play(caplog: pytest.LogCaptureFixture) -> Play:
    """Run a test's coroutine. A test that makes something fail on purpose clears the log afterwards."""

    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return lambda scene: watched(scene, run, caplog)


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway keeps its data where it is started."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    """The setting `database`: each store in turn, empty."""
    return "sqlite" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
