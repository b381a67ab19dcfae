"""The weathers with real processes: the stub, `headgate serve` on its defaults, and the official `openai` SDK."""

import asyncio
import contextlib
import enum
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import openai

from headgate.machine.clock import SystemClock
from weathers.offer import ANSWERED, Ask, Outcome, offer
from weathers.table import PATIENCE_S, Arrival, Weather
from weathers.virtual import RETRIES_OF, Way, messages_for

TESTS: Final = Path(__file__).resolve().parent.parent
JOB_PATIENCE_S: Final = 180.0
START_S: Final = 30.0
STOP_S: Final = 10.0
POLL_S: Final = 30


class Mode(enum.StrEnum):
    """What is called for."""

    WHOLE = "whole"
    STREAMED = "streamed"
    JOBS = "jobs"


class Target(NamedTuple):
    """Where the SDK sends its calls."""

    base_url: str
    key: str


def play_real(weather: Weather, way: Way, mode: Mode, seed: int) -> Outcome:
    """One run with processes of its own. All of them have ended when this returns."""
    with _stub(weather.name, seed) as port, contextlib.ExitStack() as stack:
        target = Target(f"http://127.0.0.1:{port}/0/v1", "sk-0123456789")
        if way is not Way.SDK:
            target = stack.enter_context(_gateway(weather, port, work=mode is Mode.JOBS))
        outcome = asyncio.run(_offer(weather, target, RETRIES_OF[way], mode, seed, port))
        outcome.calls = sum(_get(f"http://127.0.0.1:{port}/counts")["calls"])
        return outcome


async def _offer(
    weather: Weather, target: Target, max_retries: int, mode: Mode, seed: int, stub_port: int
) -> Outcome:
    # The SDK announces its read timeout, which becomes the call's deadline in the gateway.
    timeout = httpx2.Timeout(PATIENCE_S, connect=5.0)
    async with openai.AsyncOpenAI(
        base_url=target.base_url, api_key=target.key, max_retries=max_retries, timeout=timeout
    ) as client:
        await client.models.list()  # Loads what the first call needs.
        ask = {Mode.WHOLE: ask_whole, Mode.STREAMED: _streamed, Mode.JOBS: _job}[mode](client)
        patience_s = JOB_PATIENCE_S if mode is Mode.JOBS else PATIENCE_S
        _get(f"http://127.0.0.1:{stub_port}/begin")
        return await offer(weather.arrivals(seed), ask, SystemClock(), patience_s=patience_s)


def _body(arrival: Arrival) -> dict[str, Any]:
    return {"model": "m", "messages": messages_for(arrival), "max_tokens": 16}


def ask_whole(client: openai.AsyncOpenAI) -> Ask:
    async def ask(arrival: Arrival) -> str:
        try:
            await client.chat.completions.create(**_body(arrival))
        except openai.APIError as error:
            return why(error)
        return ANSWERED

    return ask


def _streamed(client: openai.AsyncOpenAI) -> Ask:
    """Answered is a stream that came to its end."""

    async def ask(arrival: Arrival) -> str:
        finished = False
        try:
            async with await client.chat.completions.create(**_body(arrival), stream=True) as stream:
                async for chunk in stream:
                    finished |= any(choice.finish_reason for choice in chunk.choices)
        except openai.APIError as error:
            return why(error)
        except httpx2.HTTPError:
            return "cut"
        return ANSWERED if finished else "cut"

    return ask


def _job(client: openai.AsyncOpenAI) -> Ask:
    """Submit, then wait for the job. Both obey the SDK's retries."""

    async def ask(arrival: Arrival) -> str:
        try:
            body = {"task": "chat", "input": _body(arrival)}
            job: Any = await client.post("/jobs", cast_to=object, body=body)
            while job["finished_at"] is None:
                job = await client.get(f"/jobs/{job['id']}?wait={POLL_S}", cast_to=object)
        except openai.APIError as error:
            return why(error)
        return ANSWERED if job["state"] == "completed" else str(job["state"])

    return ask


def why(error: openai.APIError) -> str:
    """Status and code of an answer, or what broke."""
    if isinstance(error, openai.APIStatusError):
        return f"{error.status_code} {error.code or ''}".strip()
    return "timeout" if isinstance(error, openai.APITimeoutError) else "connection"


@contextlib.contextmanager
def _stub(name: str, seed: int) -> Iterator[int]:
    command = [sys.executable, "-m", "weathers.stub", name, str(seed)]
    with _process(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline().strip()
        if not first.isdigit():
            raise RuntimeError(f"the stub of {name} did not start")
        yield int(first)


@contextlib.contextmanager
def _gateway(weather: Weather, stub_port: int, *, work: bool) -> Iterator[Target]:
    with tempfile.TemporaryDirectory(prefix="headgate-weather-") as folder:
        settings = Path(folder, "headgate.yaml")
        upstreams = [
            {
                "provider": "openai",
                "model": "stub",
                "base_url": f"http://127.0.0.1:{stub_port}/{place}/v1",
                "api_key": "sk-0123456789",
                **({} if slots is None else {"slots": slots}),
            }
            for place, slots in enumerate(weather.slots)
        ]
        # JSON is YAML.
        settings.write_text(
            json.dumps({"data_dir": folder, "models": {"m": {**weather.settings, "upstreams": upstreams}}})
        )
        headgate = [sys.executable, "-m", "headgate"]
        make_key = [*headgate, "keys", "create", "weather", "--role", "operate", "--config", str(settings)]
        key = subprocess.run(
            make_key, check=True, capture_output=True, text=True, timeout=START_S
        ).stdout.strip()
        port = _free_port()
        serve = [*headgate, "serve", *([] if work else ["--no-work"])]
        command = [*serve, "--listen", f"127.0.0.1:{port}", "--config", str(settings)]
        with _process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            _wait_until_ready(process, port)
            yield Target(f"http://127.0.0.1:{port}/v1", key)


@contextlib.contextmanager
def _process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Ended when this is left, however that happens: asked first, then killed."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[Any], port: int) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            _get(f"http://127.0.0.1:{port}/health/ready")
            return
        time.sleep(0.05)
    raise RuntimeError("headgate serve did not become ready")


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=START_S) as answer:
        return json.loads(answer.read() or b"null")
