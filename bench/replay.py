"""What live traffic keeps while dead letters are replayed beside it, in one process: with and without, in turns.

Run: python bench/replay.py [bounded] [unbounded]. It takes about a minute. Traffic and replayed jobs call two simulated models of one
`headgate serve`, which works on a core of its own; the load comes from another. Traffic that its model bounds shows
what callers notice; traffic that only the core bounds shows what a replay costs. Linux only.
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
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from figures import Figure, at_most, beside, none_of, run_sections
from gateway_stage import PATH, SPAWN, chat
from http_load import Load, closed_load, request_bytes
from processes import MEASURED_CORE, OTHER_CORE, Running, free_port, pin, started

import headgate
from headgate.runner.dead_letters import REPLAYS_PER_S

DEAD: Final = 10_000
KEPT: Final = 0.9
"""How much of its throughput live traffic must keep."""
SECONDS: Final = 2.0
ROUNDS: Final = 5
CONNECTIONS: Final = 16
MODELS: Final = {
    "live": {"upstreams": [{"provider": "simulated", "latency_s": 0.02, "slots": 16}]},
    "instant": {"upstreams": [{"provider": "simulated", "latency_s": 0, "slots": 64}]},
    "other": {"upstreams": [{"provider": "simulated", "latency_s": 0.05, "slots": 64}]},
}


async def bury(settings: dict[str, Any]) -> None:
    """So many chat jobs that expired before anybody ran them."""
    job = {"task": "chat", "input": json.loads(chat("other")), "expires_after_s": 0.001}
    async with headgate.open(settings, env={}) as gateway:
        for _ in range(DEAD // 1000):
            await gateway.jobs.submit_many([job] * 1000)
        await asyncio.sleep(0.01)
        while await gateway.durable.store.expire(now=time.time(), limit=1000):
            pass


@contextlib.contextmanager
def serving() -> Iterator[Running]:
    """A gateway that also works, on a database full of dead letters."""
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        settings = {"data_dir": folder, "models": MODELS}
        asyncio.run(bury(settings))
        # JSON is YAML.
        file = Path(folder, "headgate.yaml")
        file.write_text(json.dumps(settings))
        port = free_port()
        command = [sys.executable, "-m", "headgate", "serve", "--config", str(file)]
        listen = ["--listen", f"127.0.0.1:{port}"]
        with started([*command, *listen], MEASURED_CORE, port=port) as running:
            wait_for(port)
            yield running


def wait_for(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready"):
            return
        time.sleep(0.01)
    raise RuntimeError("headgate serve was not ready within 20 s")


def asked(port: int, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data) as answer:
        return json.load(answer)


class Bench:
    """The sections, each with a gateway and dead letters of its own."""

    def __init__(self, load: ProcessPoolExecutor) -> None:
        self._load = load

    def bounded(self) -> Iterator[Figure]:
        """Traffic as fast as its model takes it."""
        yield from self._measured("live")

    def unbounded(self) -> Iterator[Figure]:
        """Traffic as fast as the core takes it: whatever the replay and its jobs cost is missing here."""
        yield from self._measured("instant")

    def _measured(self, model: str) -> Iterator[Figure]:
        loads: dict[str, list[Load]] = {"without": [], "beside": []}
        with serving() as server:
            for _ in range(ROUNDS):
                loads["without"].append(self._load_on(server, model))
                with replaying(server.port):
                    loads["beside"].append(self._load_on(server, model))
            left = len(asked(server.port, "/v1/dead-letters?reason=expired&limit=1000")["data"])
        per_s = {name: statistics.median(load.per_s for load in each) for name, each in loads.items()}
        core_us = {name: statistics.median(load.core_us for load in each) for name, each in loads.items()}
        taken_percent = (core_us["beside"] - core_us["without"]) * per_s["beside"] / 1e4
        p99 = {name: statistics.median(load.p99_ms for load in each) for name, each in loads.items()}
        what = f"{model}: requests/s beside a replay"
        yield beside(what, per_s["beside"], "without", per_s["without"], least=KEPT)
        yield at_most("  … of a core, for the replay", taken_percent, "%", most=100 * (1 - KEPT))
        yield at_most("  … p99", p99["beside"], "ms", beside=f"without {p99['without']:.1f}")
        yield none_of(
            "  … answers other than 200", sum(_others(load) for each in loads.values() for load in each)
        )
        yield none_of("  … rounds without anything left to replay", int(not left))

    def _load_on(self, server: Running, model: str) -> Load:
        request = request_bytes(PATH, chat(model))
        return self._load.submit(closed_load, server.port, server.pid, request, CONNECTIONS, SECONDS).result()


@contextlib.contextmanager
def replaying(port: int) -> Iterator[None]:
    """Meanwhile dead letters are replayed; afterwards that is stopped, and what was sent back has ended."""
    order = asked(port, "/v1/dead-letters/replay", {"reason": "expired"})
    try:
        yield
    finally:
        asked(port, f"/v1/jobs/{order['id']}/cancel", {})
        asked(port, f"/v1/jobs/{order['id']}?wait=60")
        while any(asked(port, f"/v1/jobs?state={state}&limit=1")["data"] for state in ("pending", "running")):
            time.sleep(0.05)


def _others(load: Load) -> int:
    return sum(count for status, count in load.statuses.items() if status != "200")


def main(sections: list[str]) -> int:
    with ProcessPoolExecutor(1, mp_context=SPAWN, initializer=pin, initargs=(OTHER_CORE,)) as load:
        bench = Bench(load)
        known = {"bounded": bench.bounded, "unbounded": bench.unbounded}
        return run_sections(
            known, sections, f"headgate serve, SQLite; {REPLAYS_PER_S:g} dead letters a second"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
