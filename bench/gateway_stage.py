"""What a measurement of the gateway stands on: its process, those beside it, and the process the load comes from.

The gateway has a core of its own; the load and the upstream share another.
"""

import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import nginx
import peers
from crowds import lorises
from http_load import Load, closed_load, request_bytes
from processes import MEASURED_CORE, OTHER_CORE, Running, free_port, pin, script, started

T = TypeVar("T")
PATH: Final = "/v1/chat/completions"
SLOTS: Final = 16
WAIT_MS: Final = 50
CAPACITY_PER_S: Final = SLOTS / WAIT_MS * 1000
"""What the upstream of the model `slow` can serve."""
STREAMS: Final = 500
CHUNKS: Final = 100
PACES_MS: Final = (50, 20)
SPAWN: Final = multiprocessing.get_context("spawn")
LONGEST_START_S: Final = 20.0


PROFILE: Final = os.environ.get("HEADGATE_BENCH_PROFILE")
"""A file that gets the table of where the last gateway spent its time."""


_HEADGATE: Final = script("sampling.py", PROFILE) if PROFILE else [sys.executable, "-m", "headgate"]


class Gateway(NamedTuple):
    """`headgate serve` at work, and a key to it."""

    pid: int
    port: int
    key: str
    ready_s: float
    """From its start until it was ready."""


class Asked(NamedTuple):
    """Who is asked what."""

    port: int
    pid: int
    request: bytes


def chat(model: str, size_bytes: int = 200, *, stream: bool = False) -> bytes:
    """A chat body of about so many bytes."""
    body: dict[str, Any] = {"model": model, "temperature": 0.2, "stream": stream}
    content = ("lorem ipsum " * (size_bytes // 12))[: size_bytes - 110]
    body["messages"] = [{"role": "user", "content": content}]
    return json.dumps(body).encode()


class Stage:
    """Asks, in turns, from the load's process."""

    def __init__(self, stub: Running, load: ProcessPoolExecutor) -> None:
        self._stub = stub
        self._load = load

    def run(self, measure: Callable[..., T], *args: Any) -> T:
        """In the load's process, on its core."""
        return self._load.submit(measure, *args).result()

    def in_turns(
        self, rounds: int, asked: Mapping[str, Asked], *, connections: int, seconds: float
    ) -> dict[str, list[Load]]:
        """A B C, A B C: whatever disturbs one disturbs the others."""
        loads: dict[str, list[Load]] = {name: [] for name in asked}
        for _ in range(rounds):
            for name, one in asked.items():
                loads[name].append(self.run(closed_load, *one, connections, seconds))
        return loads

    @contextlib.contextmanager
    def gateway(self) -> Iterator[Gateway]:
        """A new one, as its users start it, with a key of its own."""
        with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
            settings = Path(folder, "headgate.yaml")
            # JSON is YAML.
            settings.write_text(json.dumps({"data_dir": folder, "models": self._models()}))
            key = _headgate_says("keys", "create", "bench", "--role", "operate", "--config", settings)
            port = free_port()
            serve = ["serve", "--no-work", "--listen", f"127.0.0.1:{port}", "--config", str(settings)]
            begun = time.perf_counter()
            with started([*_HEADGATE, *serve], MEASURED_CORE, port=port) as running:
                wait_until_ready(port)
                yield Gateway(running.pid, port, key, time.perf_counter() - begun)

    def _models(self) -> dict[str, Any]:
        paced = {
            f"paced-{pace_ms}": self._model(f"paced-{CHUNKS}-{pace_ms}", slots=2 * STREAMS)
            for pace_ms in PACES_MS
        }
        return {
            "instant": self._model("instant", slots=64),
            "full": self._model("wait-600000", slots=1, depth=1),
            "slow": self._model(f"wait-{WAIT_MS}", slots=SLOTS),
            **paced,
        }

    def _model(self, mode: str, **gate: int) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._stub.port}/{mode}/v1"
        upstream = {"provider": "openai", "model": "stub", "base_url": url, "api_key": "sk-0123456789"}
        return {"upstreams": [{**upstream, **gate}]}

    @contextlib.contextmanager
    def beside(self) -> Iterator[dict[str, Asked]]:
        """Who does the same work on the same core: nginx where it is installed, and bare protocols."""
        path = f"/instant{PATH}"
        request = request_bytes(PATH, chat("stub"))
        with contextlib.ExitStack() as stack:
            others = {}
            if nginx.command() is not None:
                others["nginx"] = stack.enter_context(nginx.proxy(self._stub.port, path, MEASURED_CORE))
            bare = script("bare_proxy.py", self._stub.port, path)
            others["bare proxy"] = stack.enter_context(started(bare, MEASURED_CORE))
            asked = {name: Asked(other.port, other.pid, request) for name, other in others.items()}
            for peer, program in peers.installed():
                other = stack.enter_context(peers.running(peer, program, self._stub.port, MEASURED_CORE))
                asked[peer.name] = Asked(
                    other.port, other.pid, request_bytes(peer.path, chat(peer.model), peers.KEY)
                )
            yield asked

    @contextlib.contextmanager
    def bare_reader(self, body: bytes) -> Iterator[Asked]:
        """The floor of a refusal: who reads a body on the measured core and answers at once, knowing nothing of it."""
        with started(script("upstream_stub.py"), MEASURED_CORE) as bare:
            yield Asked(bare.port, bare.pid, request_bytes(f"/instant{PATH}", body))

    def directly(self, body: bytes, mode: str = "instant") -> Asked:
        return Asked(self._stub.port, self._stub.pid, request_bytes(f"/{mode}{PATH}", body))


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    """The upstream and the load's process, on their core."""
    with (
        started(script("upstream_stub.py"), OTHER_CORE) as stub,
        ProcessPoolExecutor(1, mp_context=SPAWN, initializer=pin, initargs=(OTHER_CORE,)) as load,
    ):
        yield Stage(stub, load)


def to_gateway(gateway: Gateway, body: bytes) -> Asked:
    """Under the key it has told."""
    return Asked(gateway.port, gateway.pid, request_bytes(PATH, body, gateway.key))


@contextlib.contextmanager
def filled(gateway: Gateway) -> Iterator[None]:
    """The model `full` has one slot and one place to wait: both are taken."""
    request = request_bytes(PATH, chat("full"), gateway.key)
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port)))
            client.sendall(request)
        time.sleep(0.2)
        yield


@contextlib.contextmanager
def crowded(port: int, count: int) -> Iterator[None]:
    """So many slow lorises, in a process of their own."""
    here, go = SPAWN.Event(), SPAWN.Event()
    process = SPAWN.Process(target=lorises, args=(port, count, here, go), daemon=True)
    process.start()
    try:
        if not here.wait(30):
            raise RuntimeError(f"not all of {count} connections were taken")
        yield
    finally:
        go.set()
        process.join()


def _headgate_says(*args: object) -> str:
    command = [sys.executable, "-m", "headgate", *map(str, args)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def wait_until_ready(port: int) -> None:
    until = time.monotonic() + LONGEST_START_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready"):
            return
        time.sleep(0.005)
    raise RuntimeError(f"headgate serve was not ready within {LONGEST_START_S:g} s")
