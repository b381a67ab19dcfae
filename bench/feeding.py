"""How long `client.feed` takes beside a batch of the same requests: one `headgate serve`, in the same run.

Run: python bench/feeding.py [slots] [requests]. SQLite on a file with fsync, the simulated provider, chat bodies of about
700 bytes, default settings but for the models. `slots`: 16 slots and 50 ms an answer, so the upstream is the limit and a
place that stays free costs time. `requests`: answers at once, so what the requests themselves cost is the limit.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvloop
from figures import Figure, beside, run_sections, times
from gateway_stage import wait_until_ready
from ground import chat
from processes import MEASURED_CORE, free_port, started

from headgate.client import AsyncClient

ROUNDS: Final = 3
FEW: Final = 600
MANY: Final = 5_000
MAX_RATIO: Final = 1.3
"""How many times the batch's time a feed may take where the slots are the limit."""
LOOK_S: Final = 0.02
MODELS: Final[dict[str, dict[str, Any]]] = {
    "usual": {"latency_s": 0.05, "slots": 16},
    "instant": {"latency_s": 0, "slots": 64},
}


def slots() -> Iterator[Figure]:
    fed_s, batched_s = _measured("usual", FEW)
    what = f"sqlite: a feed of {FEW}, 16 slots, 50 ms an answer"
    yield times(what, fed_s * 1000, beside_ms=batched_s * 1000, most=MAX_RATIO, name="a batch")


def requests() -> Iterator[Figure]:
    fed_s, batched_s = _measured("instant", MANY)
    what = f"sqlite: a feed of {MANY:,}, answered at once"
    yield beside(what, MANY / fed_s, "a batch", MANY / batched_s)


def _measured(model: str, items: int) -> tuple[float, float]:
    """The medians of a feed and of a batch, in turns."""
    with _served() as url:
        return uvloop.run(_compared(url, model, items))


async def _compared(url: str, model: str, items: int) -> tuple[float, float]:
    fed, batched = [], []
    async with AsyncClient(url) as client:
        for number in range(ROUNDS):
            batched.append(await _batched_s(client, model, items))
            fed.append(await _fed_s(client, model, items, run=f"round {number}"))
    return statistics.median(fed), statistics.median(batched)


async def _fed_s(client: AsyncClient, model: str, items: int, *, run: str) -> float:
    began = time.perf_counter()
    progress = await client.feed(
        range(items), task="chat", run=run, input=lambda number: _body(model, number)
    )
    took_s = time.perf_counter() - began
    if progress.completed != items:
        raise AssertionError(f"the feed ended as {progress}")
    return took_s


async def _batched_s(client: AsyncClient, model: str, items: int) -> float:
    """From the upload until the batch is completed, seen by frequent looks."""
    lines = [{"custom_id": str(number), "body": _body(model, number)} for number in range(items)]
    began = time.perf_counter()
    batch = await client.batches.create(lines)
    while batch["status"] not in {"completed", "failed", "expired", "cancelled"}:
        await asyncio.sleep(LOOK_S)
        batch = await client.batches.get(batch["id"])
    took_s = time.perf_counter() - began
    if batch["request_counts"]["completed"] != items:
        raise AssertionError(f"the batch ended as {batch}")
    return took_s


def _body(model: str, number: int) -> dict[str, Any]:
    body = chat(700)
    body["messages"][-1]["content"] += f"({number})"
    return {"model": model, **body}


@contextlib.contextmanager
def _served() -> Iterator[str]:
    """`headgate serve` as its users start it, with an empty database."""
    models = {name: {"upstreams": [{"provider": "simulated", **options}]} for name, options in MODELS.items()}
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        settings = Path(folder, "headgate.yaml")
        settings.write_text(json.dumps({"data_dir": folder, "models": models}))  # JSON is YAML.
        port = free_port()
        serve = [sys.executable, "-m", "headgate", "serve", "--config", str(settings)]
        with started([*serve, "--listen", f"127.0.0.1:{port}"], MEASURED_CORE, port=port):
            wait_until_ready(port)
            yield f"http://127.0.0.1:{port}"


if __name__ == "__main__":
    sys.exit(run_sections({"slots": slots, "requests": requests}, sys.argv[1:]))
