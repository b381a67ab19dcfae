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

from headgate.server.http.exchange import Exchange

TOLD: Final = ("articles",)
"""The applications whose routes say in the document what they answer."""
EXAMPLES: Final = 8
ANY_NAME: Final = """
[[operations]]
include-name-regex = "^POST /v1/(jobs|batches)"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409"]
"""
"""A task can have any name and any input by the document; which are known and fit is not its business."""
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
    Path("schemathesis.toml").write_text(ANY_NAME)  # noqa: ASYNC240 - a moment
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{house.url}/openapi.json", *options]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        told, _ = await asyncio.wait_for(process.communicate(), 55)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, told.decode()


def test_every_route_keeps_to_the_document(play: Play, figure: Figure) -> None:
    """No 5xx, and no status, header, kind or shape of an answer that the document does not know."""

    async def scene() -> None:
        async with opened({**one_model(SIMULATED), "apps": {name: {} for name in TOLD}}, work=True) as house:
            given = _watched(house)
            code, told = await _run(
                house,
                f"--max-examples={EXAMPLES}",
                "--generation-deterministic",
                "--phases=examples,coverage,fuzzing",
                "--checks=all",
                "--continue-on-failure",
                # A deadline of 1e-45 s is right by the document, and 504 its honest answer.
                "--header=X-Headgate-Timeout: 20",
                # It goes on for as long as somebody reads it.
                "--exclude-path=/events",
                "--no-color",
                "--warnings=off",
            )
            assert code == 0, told
            assert not [status for status in given if status >= 500], given
            assert given[200] > 50
            assert given[400] > 50
            counts = ", ".join(f"{count} × {status}" for status, count in sorted(given.items()))
            figure("schemathesis", f"{given.total()} answers ({counts}), 0 schema breaks")

    play(scene)
