"""Other gateways, where they are installed: HEADGATE_BENCH_PEERS names folders of programs (`…/venv/bin`, by colons).

They do less than we do here: no keys of their own making, no log, TensorZero without its database, LiteLLM with one worker. Installed with
pip, each in an environment of its own: `vllm-router`, `tensorzero`, `litellm[proxy]`.
"""

import contextlib
import json
import os
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from processes import Running, free_port, started

LONGEST_START_S: Final = 90.0
PLACES: Final = os.environ.get("HEADGATE_BENCH_PEERS", "")
_TENSORZERO: Final = """
[gateway]
observability.enabled = false
[models.stub]
routing = ["stub"]
[models.stub.providers.stub]
type = "openai"
model_name = "stub"
api_base = "http://127.0.0.1:{upstream_port}/v1"
api_key_location = "none"
"""
_START_TENSORZERO: Final = """
import asyncio, inspect, os, sys
told = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Its log goes where ours goes: nowhere.
from tensorzero.tensorzero import _start_http_gateway as start
async def main():
    running = start(config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=True)
    running = await running if inspect.isawaitable(running) else running
    print(running.base_url.rstrip("/").removesuffix("/openai/v1").rpartition(":")[2], file=told, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
KEY: Final = "sk-9f2b7c41d8e64a05b3c1e7f0a8d25b6e"
"""LiteLLM does not start without one. The others look at none."""
_LITELLM: Final = """
general_settings: {{master_key: {key}}}
model_list:
  - model_name: stub
    litellm_params: {{model: openai/stub, api_base: "http://127.0.0.1:{upstream_port}/v1", api_key: none}}
"""


Run = Callable[[str, int, Path, int], contextlib.AbstractContextManager[Running]]
"""(program, upstream's port, folder, core) → the process."""


class Peer(NamedTuple):
    """How it is started and asked."""

    name: str
    find: Callable[[], str | None]
    path: str
    model: str
    run: Run


def installed() -> list[tuple[Peer, str]]:
    """Those that are there, with their program."""
    found = [(peer, peer.find()) for peer in PEERS] if PLACES else []
    return [(peer, program) for peer, program in found if program is not None]


def _on_path(program: str) -> str | None:
    return shutil.which(program, path=PLACES)


def _python_with_tensorzero() -> str | None:
    """The gateway is inside the package: what is started is its environment's Python."""
    for place in PLACES.split(":"):
        if any(Path(place).parent.glob("lib/python*/site-packages/tensorzero")):
            return str(Path(place, "python"))
    return None


@contextlib.contextmanager
def running(peer: Peer, program: str, upstream_port: int, core: int) -> Iterator[Running]:
    with (
        tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder,
        peer.run(program, upstream_port, Path(folder), core) as process,
    ):
        _wait_until_it_answers(peer, process.port)
        yield process


def _vllm_router(
    program: str, upstream_port: int, _folder: Path, core: int
) -> contextlib.AbstractContextManager[Running]:
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    workers = ["--worker-urls", f"http://127.0.0.1:{upstream_port}", "--policy", "round_robin"]
    return started([program, *options, *workers, "--log-level", "error"], core, port=port)


def _tensorzero(
    program: str, upstream_port: int, folder: Path, core: int
) -> contextlib.AbstractContextManager[Running]:
    settings = folder / "tensorzero.toml"
    settings.write_text(_TENSORZERO.format(upstream_port=upstream_port))
    return started([program, "-c", _START_TENSORZERO, str(settings)], core)


def _litellm(
    program: str, upstream_port: int, folder: Path, core: int
) -> contextlib.AbstractContextManager[Running]:
    port, settings = free_port(), folder / "litellm.yaml"
    settings.write_text(_LITELLM.format(key=KEY, upstream_port=upstream_port))
    return started(
        [program, "--config", str(settings), "--port", str(port), "--num_workers", "1"], core, port=port
    )


def _wait_until_it_answers(peer: Peer, port: int) -> None:
    """It may listen long before it serves, and its first answer may take it seconds."""
    body = {"model": peer.model, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{peer.path}", json.dumps(body).encode(), headers)
    until = time.monotonic() + LONGEST_START_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=LONGEST_START_S):
            return
        time.sleep(0.2)
    raise RuntimeError(f"{peer.name} did not answer within {LONGEST_START_S:g} s")


PEERS: Final = (
    Peer("vLLM router", lambda: _on_path("vllm-router"), "/v1/chat/completions", "stub", _vllm_router),
    Peer(
        "TensorZero",
        _python_with_tensorzero,
        "/openai/v1/chat/completions",
        "tensorzero::model_name::stub",
        _tensorzero,
    ),
    Peer("LiteLLM", lambda: _on_path("litellm"), "/v1/chat/completions", "stub", _litellm),
)
