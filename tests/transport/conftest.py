"""Every test of the wire runs on both event loops, and leaves no connection behind."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from transport import certificates
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


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    """Skipped where there is no openssl command, but never by a CI."""
    if certificates.OPENSSL is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "the openssl command is not installed"
        )
    return certificates.make(tmp_path_factory.mktemp("certificates"))
