"""Every test of the front runs on both event loops; what a loop or the log could only tell is a failure, too."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from server.conftest import watched
from server.http.front_stage import LOOPS, Play


@pytest.fixture(params=list(LOOPS))
def play(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Play:
    """Run a test's coroutine. A test that makes an application fail clears the log afterwards."""

    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(main)

    return lambda scene: watched(scene, run, caplog)
