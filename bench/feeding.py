"""How long `client.feed` takes beside a batch of the same requests: one `headgate serve`, in the same run.

Run: python bench/feeding.py [usual] [instant]. SQLite on a file with fsync, the simulated provider, one client process.
`usual`: 16 slots and 50 ms an answer, so the slots are the limit. `instant`: answers at once, so the requests are.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop
from figures import Figure, run_sections, times
from ground import chat
from processes import MEASURED_CORE, free_port, started

from headgate.client import AsyncClient

ITEMS: Final = 600
ROUNDS: Final = 3
MOST: Final = 1.3
"""How many times the batch's time a feed may take."""
LOOK_S: Final = 0.02
LONGEST_START_S: Final = 30.0
MODELS: Final[dict[str, dict[str, Any]]] = {
    "usual": {"latency_s": 0.05, "slots": 16},
    "instant": {"latency_s": 0, "slots": 64},
}


def _body(model: str, number: int) -> dict[str, Any]:
    body = chat(700)
    body["messages"][-1]["content"] += f"({number})"
    return {"model": model, **body}


async def _fed_s(client: AsyncClient, model: str, run: str) -> float:
    began = time.perf_counter()
    progress = await client.feed(
        range(ITEMS), task="chat", run=run, input=lambda number: _body(model, number)
    )
    took_s = time.perf_counter() - began
    if progress.completed != ITEMS:
        raise AssertionError(f"the feed ended as {progress}")
    return took_s


async def _batched_s(client: AsyncClient, model: str) -> float:
    lines = [{"custom_id": str(number), "body": _body(model, number)} for number in range(ITEMS)]
    began = time.perf_counter()
    batch = await client.batches.create(lines)
    while batch["status"] not in {"completed", "failed", "expired", "cancelled"}:
        await asyncio.sleep(LOOK_S)
        batch = await client.batches.get(batch["id"])
    took_s = time.perf_counter() - began
    if batch["request_counts"]["completed"] != ITEMS:
        raise AssertionError(f"the batch ended as {batch}")
    return took_s


async def _compared(url: str, model: str) -> tuple[float, float]:
    """The medians of both, measured in turns."""
    fed, batched = [], []
    async with AsyncClient(url) as client:
        for number in range(ROUNDS):
            batched.append(await _batched_s(client, model))
            fed.append(await _fed_s(client, model, f"round {number}"))
    return statistics.median(fed), statistics.median(batched)


@contextlib.contextmanager
def _served() -> Iterator[str]:
    """`headgate serve`, as its users start it."""
    models = {name: {"upstreams": [{"provider": "simulated", **options}]} for name, options in MODELS.items()}
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        settings = Path(folder, "headgate.yaml")
        settings.write_text(json.dumps({"data_dir": folder, "models": models}))  # JSON is YAML.
        port = free_port()
        serve = [sys.executable, "-m", "headgate", "serve", "--config", str(settings)]
        with started([*serve, "--listen", f"127.0.0.1:{port}"], MEASURED_CORE, port=port):
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url)
            yield url


def _wait_until_ready(url: str) -> None:
    until = time.monotonic() + LONGEST_START_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health/ready"):
            return
        time.sleep(0.01)
    raise RuntimeError(f"headgate serve was not ready within {LONGEST_START_S:g} s")


def _section(model: str) -> Iterator[Figure]:
    with _served() as url:
        fed_s, batched_s = uvloop.run(_compared(url, model))
    what = f"sqlite: a feed of {ITEMS}, {MODELS[model]['latency_s'] * 1000:g} ms an answer"
    yield times(what, fed_s * 1000, beside_ms=batched_s * 1000, most=MOST, name="a batch")


def main(asked: list[str]) -> int:
    return run_sections({name: partial(_section, name) for name in MODELS}, asked)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
