"""How fast a batch goes through: from create to completed, its lines durable jobs on an instant simulated upstream.

Run: python bench/batches.py. One process, SQLite on a file with fsync, uvloop, chat bodies of about 700 bytes.
Beside it the same number of calls that are not durable, through the same gate: the rest is what a batch costs.
"""

import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

import msgspec
from figures import Figure, in_turns, rate, run_sections
from ground import SQLITE, Ground, apart, chat, fresh

import headgate
from headgate.core.batch import BatchState

LINES: Final = 10_000
ROUNDS: Final = 3
LEAST_PER_S: Final = 2000
SLOTS: Final = 256
ENDPOINT: Final = "/v1/chat/completions"


def _settings(ground: Ground) -> dict[str, Any]:
    upstream = {"provider": "simulated", "latency_s": 0, "slots": SLOTS}
    return {"data_dir": ground.folder, "models": {"m": {"upstreams": [upstream]}}}


def _content(lines: int) -> bytes:
    body = {"model": "m", **chat(700)}
    return b"".join(
        msgspec.json.encode({"custom_id": f"line {number}", "method": "POST", "url": ENDPOINT, "body": body})
        + b"\n"
        for number in range(lines)
    )


async def lines_per_s(ground: Ground, *, lines: int) -> float:
    """From the moment the batch is asked for until its files are on the disk."""
    async with headgate.open(_settings(ground), env={}, work=True) as gateway:
        file = await gateway.files.create(_content(lines))
        began = time.perf_counter()
        created = await gateway.batches.create(input_file_id=file.id, endpoint=ENDPOINT)
        batch = await gateway.batches.wait(created.batch.id)
        took_s = time.perf_counter() - began
        if batch.status is not BatchState.COMPLETED or batch.request_counts.completed != lines:
            raise AssertionError(f"it ended as {batch}")
        return lines / took_s


async def calls_per_s(ground: Ground, *, calls: int) -> float:
    async with headgate.open(_settings(ground), env={}) as gateway:
        asked = [{"model": "m", "messages": chat(700)["messages"]}] * calls
        began = time.perf_counter()
        await gateway.complete_many(asked)
        return calls / (time.perf_counter() - began)


def lines() -> Iterator[Figure]:
    measured = in_turns(
        ROUNDS,
        {
            "ours": lambda: _measure(lines_per_s, lines=LINES),
            "floor": lambda: _measure(calls_per_s, calls=LINES),
        },
    )
    yield rate(
        f"sqlite: a batch of {LINES:,} lines, create to completed",
        measured["ours"],
        least=LEAST_PER_S,
        name="calls that are not durable",
        beside=measured["floor"],
    )


def _measure(measure: Callable[..., Coroutine[Any, Any, float]], **options: int) -> float:
    with fresh(SQLITE, "") as ground:
        return apart(measure, ground, **options)


if __name__ == "__main__":
    sys.exit(run_sections({"lines": lines}, sys.argv[1:]))
