"""What live traffic keeps while 10,000 dead letters are replayed beside it, in one process.

Run: python bench/replay.py. It takes about a minute. Traffic and replayed jobs call two simulated models of one
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

DEAD: Final = 10_000
PER_SECOND: Final = 500
SECONDS: Final = 3.0
ROUNDS: Final = 4
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
        yield from self._measured("live", least=0.9)

    def unbounded(self) -> Iterator[Figure]:
        """Traffic as fast as the core takes it: whatever the replay and its jobs cost is missing here."""
        yield from self._measured("instant", least=None)

    def _measured(self, model: str, *, least: float | None) -> Iterator[Figure]:
        with serving() as server:
            before = self._loads(server, model)
            order = asked(
                server.port, "/v1/dead-letters/replay", {"reason": "expired", "per_second": PER_SECOND}
            )
            during = self._loads(server, model)
            running = asked(server.port, f"/v1/jobs/{order['id']}")
            ended = asked(server.port, f"/v1/jobs/{order['id']}?wait=60")
            left = asked(server.port, "/v1/dead-letters?reason=expired")["data"]
        quiet, busy = (statistics.median(load.per_s for load in loads) for loads in (before, during))
        p99 = [statistics.median(load.p99_ms for load in loads) for loads in (before, during)]
        yield beside(f"{model}: requests/s while {DEAD:,} are replayed", busy, "without", quiet, least=least)
        yield at_most("  … p99", p99[1], "ms", beside=f"without {p99[0]:.1f}")
        yield none_of("  … answers other than 200", sum(_others(load) for load in (*before, *during)))
        yield none_of("  … not replayed", DEAD - ended["result"]["done"] + len(left))
        yield none_of("  … replay over before the measurement", int(running["state"] != "running"))

    def _loads(self, server: Running, model: str) -> list[Load]:
        request = request_bytes(PATH, chat(model))
        measure = (closed_load, server.port, server.pid, request, CONNECTIONS, SECONDS)
        return [self._load.submit(*measure).result() for _ in range(ROUNDS)]


def _others(load: Load) -> int:
    return sum(count for status, count in load.statuses.items() if status != "200")


def main(sections: list[str]) -> int:
    with ProcessPoolExecutor(1, mp_context=SPAWN, initializer=pin, initargs=(OTHER_CORE,)) as load:
        bench = Bench(load)
        known = {"bounded": bench.bounded, "unbounded": bench.unbounded}
        return run_sections(known, sections, f"headgate serve, SQLite; {PER_SECOND} dead letters a second")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
