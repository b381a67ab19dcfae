"""Every test of the wire runs on both event loops, and leaves no connection behind."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from transport.wire_stage import LOOPS, Play


@pytest.fixture(params=list(LOOPS))
def play(request: pytest.FixtureRequest) -> Play:
    """Run a test's coroutine. What the loop could only log is a failure, too."""

    def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        troubles: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
            await asyncio.wait_for(scene(), 20)

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(watched())
        assert troubles == []

    return run
