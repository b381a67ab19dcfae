"""Every test of the front runs on both event loops; what a loop or the log could only tell is a failure, too."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from server.http.front_stage import LOOPS, Play


@pytest.fixture(params=list(LOOPS))
def play(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Play:
    """Run a test's coroutine. A test that makes an application fail clears the log afterwards."""

    def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        troubles: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
            await asyncio.wait_for(scene(), 60)

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(watched())
        assert troubles == []
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []

    return run
