"""The OpenAPI document and the server agree: schemathesis asks every route, right and wrong, and checks every answer."""

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from conftest import Figure
from server.http.front_stage import Play
from server.stage import House, opened
from server.upstreams import interpose, one_model

from headgate import wiring
from headgate.server.http.exchange import Exchange

APPS: Final[dict[str, Any]] = {name: {} for name in wiring.APPS}
"""All there are, mounted."""
EXAMPLES: Final = 5
CONFIGURED: Final = """
# A deadline of 1e-45 s is right by the document, and 504 its honest answer.
[checks]
not_a_server_error.expected-statuses = ["2xx", "4xx", "504"]

# Every 405 is in the matrix of errors already.
[phases.coverage]
unexpected-methods = []

# A task can have any name and any input by the document, a bookmark any address; which are known and fit is not its business.
[[operations]]
include-name-regex = "^POST /v1/(jobs|batches|bookmarks)"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409"]
"""
SIMULATED: Final = {"provider": "simulated", "latency_s": 0, "slots": 50, "depth": 0}


class _WatchedWire:
    """Notes the status of every answer that is written."""

    def __init__(self, wire: Any, given: Counter[int]) -> None:
        self._wire = wire
        self._given = given

    def write(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 "):
            self._given[int(data[9:12])] += 1
        self._wire.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)


def _watched(house: House) -> Counter[int]:
    """The status of every answer that the application gives."""
    given: Counter[int] = Counter()

    def watch(exchange: Exchange) -> None:
        exchange.wire = _WatchedWire(exchange.wire, given)

    interpose(house, watch)
    return given


async def _run(house: House, *options: str) -> tuple[int, str]:
    Path("schemathesis.toml").write_text(CONFIGURED)  # noqa: ASYNC240 - a moment
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{house.url}/openapi.json", *options]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(55):
            told, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, told.decode()


def test_every_route_keeps_to_the_document(play: Play, figure: Figure) -> None:
    """No 5xx, and no status, header, kind or shape of an answer that the document does not know."""

    async def scene() -> None:
        async with opened({**one_model(SIMULATED), "apps": APPS}, work=True) as house:
            given = _watched(house)
            code, told = await _run(
                house,
                f"--max-examples={EXAMPLES}",
                "--generation-deterministic",
                "--phases=examples,coverage,fuzzing",
                "--checks=all",
                "--continue-on-failure",
                # It goes on for as long as somebody reads it.
                "--exclude-path=/events",
                "--no-color",
                "--warnings=off",
            )
            assert code == 0, told
            assert not [status for status in given if status >= 500 and status != 504], given
            assert given[200] > 50
            assert given[400] > 50
            counts = ", ".join(f"{count} × {status}" for status, count in sorted(given.items()))
            figure("schemathesis", f"{given.total()} answers ({counts}), 0 schema breaks")

    play(scene)
