"""`headgate demo` as a stranger meets it: real processes, a verdict, and nothing left behind, however it ends."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import internal_errors
import pytest
from cli.command_stage import PATIENCE_S, end

from headgate import Context
from headgate.cli.demo.tasks import Poison, poison
from headgate.cli.demo.upstream import SimulatedUpstream
from headgate.providers.simulated import SimulatedOptions
from headgate.transport import Endpoint, Limits, Response, Transport, TransportError

SMALL = ("--seconds", "2", "--calls", "24", "--jobs", "10", "--lines", "3", "--keys", "2")
RUBBISH = {
    "OPENAI_API_KEY": "sk-not-for-the-demo",
    "HEADGATE_URL": "http://127.0.0.1:9",
    "HEADGATE_API_KEY": "hg-not-for-the-demo",
    "HEADGATE__LISTEN": "nonsense",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "DATABASE_URL": "postgresql://127.0.0.1:9/nobody",
}


class Place:
    """A folder to be in that must stay as it is, and one for temporary files that must be empty again."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "here"
        self.temporary = folder / "temporary"
        for made in (self.here, self.temporary):
            made.mkdir()
        self.here.chmod(0o555)
        self._demos: list[subprocess.Popen[str]] = []

    def demo(self, *words: str) -> "subprocess.Popen[str]":
        passed_on = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        process = subprocess.Popen(
            [sys.executable, "-m", "headgate", "demo", *words],
            cwd=self.here,
            env={**passed_on, **RUBBISH, "TMPDIR": str(self.temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._demos.append(process)
        return process

    def end(self) -> None:
        """A test that failed leaves nothing behind either."""
        for process in self._demos:
            process.terminate()
            _, err = process.communicate(timeout=PATIENCE_S)
            internal_errors.read(err)

    def is_clean(self) -> bool:
        return not (list(self.here.iterdir()) or list(self.temporary.iterdir()) or self._processes())

    def _processes(self) -> list[str]:
        """Those of the demo have its folder on their command line."""
        lines = (_command_line(process) for process in Path("/proc").glob("[0-9]*"))
        return [line for line in lines if str(self.temporary) in line]


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.end()


def _hear(process: "subprocess.Popen[str]", words: str) -> str:
    """Everything it says up to the line with these words."""
    assert process.stdout is not None
    heard = ""
    for line in process.stdout:
        heard += line
        if words in line:
            return heard
    pytest.fail(f"it never said {words!r}, but: {heard}")


def test_a_small_storm_ends_with_a_verdict_stays_as_asked_and_leaves_nothing_behind(place: Place) -> None:
    """Whatever lies around: a key, a proxy, a database and settings that nobody meant for it."""
    process = place.demo(*SMALL, "--stay")
    heard = _hear(process, "queue/status")
    assert "PASS  nothing lost, nothing done twice, every promise kept" in heard
    assert "poison: killed each worker that ran it" in heard
    figures = {line.split("  ")[0]: line.split() for line in heard.splitlines() if line}
    assert figures["replayed"][1] == "1"
    assert figures["lost"][1] == figures["doubled"][1] == "0"
    url = heard.split()[-1]
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        assert json.load(answer)["total_slots"] > 0
    process.send_signal(signal.SIGINT)
    assert end(process).code == 0
    assert place.is_clean()


@pytest.mark.parametrize("moment", ["No keys, no network", "at work"])
def test_ctrl_c_leaves_nothing_behind(place: Place, moment: str) -> None:
    """While the gateway starts, and amid the storm; impatient fingers press it twice."""
    process = place.demo()
    _hear(process, moment)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert end(process).code == 130
    assert place.is_clean()


def test_a_poison_job_that_strays_elsewhere_kills_nobody() -> None:
    """It may end only the workers of the demo that made it."""

    async def main() -> str:
        return await poison.run(cast("Context", None), Poison("another demo's mark"))

    assert "nothing was done" in asyncio.run(main())


def test_an_upstream_counts_what_was_answered_to_the_end_and_not_who_left() -> None:
    """The verdict rests on these counts: a worker that dies while it waits has paid for nothing."""
    options = SimulatedOptions(latency_s=0.05)
    upstream = SimulatedUpstream(
        "primary", {"quick": options, "never": SimulatedOptions(outcome="stall")}, seed=1
    )

    async def main() -> None:
        url = await upstream.start()
        transport = Transport()
        for question, fields in (("whole", {}), ("streamed", {"stream": True})):
            with await _send(transport, url, question, model="quick", **fields) as response:
                assert await response.read()
        with contextlib.suppress(TransportError):
            await _send(transport, url, "left", model="never", patience_s=0.2)
        await transport.aclose()
        await upstream.aclose()

    asyncio.run(main())
    assert upstream.counts.arrived == {"whole": 1, "streamed": 1, "left": 1}
    assert upstream.counts.answered == {"whole": 1, "streamed": 1}
    assert (upstream.counts.left, upstream.counts.in_flight) == (1, 0)


def test_an_upstream_counts_apart_what_it_throttles_and_what_meets_its_outage() -> None:
    """Those attempts cost a call nothing, so the verdict leaves them out."""
    models = {
        name: SimulatedOptions(latency_s=0, failure_latency_s=0, script=(name,))
        for name in ("throttled", "transient")
    }
    upstream = SimulatedUpstream("primary", models, seed=1)

    async def main() -> None:
        url = await upstream.start()
        transport = Transport()
        for model in models:
            for upstream.down in (False, True):
                name = f"{model}, {'down' if upstream.down else 'up'}"
                with await _send(transport, url, name, model=model) as response:
                    assert response.status in {429, 503, 500}
        await transport.aclose()
        await upstream.aclose()

    asyncio.run(main())
    assert upstream.counts.arrived.total() == 4
    assert upstream.counts.free.keys() == {"throttled, up", "throttled, down", "transient, down"}


async def _send(
    transport: Transport, url: str, question: str, *, patience_s: float = PATIENCE_S, **fields: Any
) -> Response:
    body = json.dumps({"messages": [{"role": "user", "content": question}], **fields}).encode()
    endpoint = Endpoint(f"{url}/chat/completions", method="POST")
    return await transport.send(endpoint, body, limits=Limits(total_s=patience_s))
