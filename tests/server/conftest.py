"""Every test of the served gateway runs in one loop; what only the loop or the log could tell is a failure, too."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from server.http.front_stage import Play


@pytest.fixture
def play(caplog: pytest.LogCaptureFixture) -> Play:
    """Run a test's coroutine. A test that makes something fail on purpose clears the log afterwards."""

    def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        troubles: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
            await asyncio.wait_for(scene(), 60)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(watched())
        assert troubles == []
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []

    return run


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway keeps its data where it is started."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    """The setting `database`: each store in turn, empty."""
    return "sqlite" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
