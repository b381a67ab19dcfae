"""Traces: one span per request, its attempts and waits inside, exact to the moment, and never a word of what was said."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from observe.tracing_stage import Traced, said, seconds, trace_id, traced
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, StatusCode
from stage import USER

import headgate
from headgate import wiring
from headgate.core.errors import HeadgateError, SettingsError
from headgate.core.events import AttemptEnded
from headgate.gateway import Gateway
from headgate.observe import tracing
from headgate.observe.spans import provider_and_model
from headgate.planner import virtual
from headgate.planner.virtual import EPOCH, World

STEADY = {"first_wait_s": 2, "jitter": "none"}


def opened(world: World, found: Traced, *upstreams: dict[str, Any], **model: Any) -> Gateway:
    listed = [{"provider": "simulated", **upstream} for upstream in upstreams]
    settings = wiring.read_settings(
        {"models": {"m": {"upstreams": listed, "retry": STEADY, **model}}}, env={}
    )
    return wiring.build(settings, clock=world.clock, chance=world.chance, tracing=found.tracing)


def test_a_request_is_a_span_with_its_attempts_inside() -> None:
    """A failure after 1 s, 2 s of waiting, then an answer after 1 s more."""
    found = traced()

    async def main(world: World) -> None:
        found.tracing._utc = world.clock.utc
        gateway = opened(world, found, {"latency_s": 1, "script": [503, "ok"], "model": "simulated/instant"})
        await gateway.complete(model="m", messages=USER, agent_id="a1", request_id="r-1")

    virtual.run(main)
    request = found.request
    assert (request.name, request.kind, request.parent) == ("chat m", SpanKind.SERVER, None)
    assert seconds(request, EPOCH) == (0, 4)
    told = said(request)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == "m"
    assert (told["headgate.request.id"], told["headgate.agent.id"]) == ("r-1", "a1")
    assert (told["headgate.tenant"], told["headgate.lane"], told["headgate.attempts"]) == (
        "local",
        "interactive",
        2,
    )
    assert "error.type" not in told
    first, second = found.children(request)
    assert {(span.name, span.kind) for span in (first, second)} == {
        ("chat simulated/instant", SpanKind.CLIENT)
    }
    assert (seconds(first, EPOCH), seconds(second, EPOCH)) == ((0, 1), (3, 4))
    assert first.status.status_code is StatusCode.ERROR
    assert (said(first)["error.type"], said(first)["http.response.status_code"]) == ("transient", 503)
    assert said(second)["gen_ai.provider.name"] == "simulated"
    assert said(second)["gen_ai.usage.output_tokens"] > 0
    assert {trace_id(span) for span in found.spans} == {trace_id(request)}


def test_a_wait_at_a_gate_is_a_span_of_its_own() -> None:
    """One slot, two callers: the second waits for as long as the first takes."""
    found = traced()

    async def main(world: World) -> None:
        found.tracing._utc = world.clock.utc
        gateway = opened(world, found, {"latency_s": 3, "slots": 1})
        await asyncio.gather(*(gateway.complete(model="m", messages=USER) for _ in range(2)))

    virtual.run(main)
    waited = max(found.requests, key=lambda span: span.end_time or 0)
    queue, attempt = found.children(waited)
    assert (queue.name, seconds(queue, EPOCH)) == ("queue", (0, 3))
    assert said(queue) == {"headgate.upstream": "simulated", "headgate.lane": "interactive"}
    assert seconds(attempt, EPOCH) == (3, 6)
    assert said(waited)["headgate.queue_ms"] == 3000


def test_failures_and_cancellations_end_their_spans() -> None:
    found = traced()

    async def main(world: World) -> None:
        found.tracing._utc = world.clock.utc
        gateway = opened(world, found, {"latency_s": 1, "script": [400, "stall"]})
        with pytest.raises(HeadgateError):
            await gateway.complete(model="m", messages=USER, request_id="rejected")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await gateway.complete(model="m", messages=USER, request_id="left")

    virtual.run(main)
    rejected, left = found.requests
    assert rejected.status.status_code is StatusCode.ERROR
    assert said(rejected)["error.type"] == "rejected"
    assert said(left)["error.type"] == "cancelled"
    assert seconds(left, EPOCH) == (1, 6)
    assert left.status.status_code is StatusCode.UNSET


def test_a_stream_s_span_lasts_to_its_end_and_knows_its_first_content() -> None:
    found = traced()

    async def main(world: World) -> None:
        found.tracing._utc = world.clock.utc
        gateway = opened(world, found, {"latency_s": 4, "chunks": 5})
        async with gateway.stream(model="m", messages=USER) as stream:
            async for _ in stream:
                await world.clock.sleep(1)

    virtual.run(main)
    begun, ended = seconds(found.request, EPOCH)
    first_s = said(found.request)["gen_ai.response.time_to_first_chunk"]
    assert begun < first_s < ended
    assert [seconds(span, EPOCH) for span in found.children(found.request)] == [(begun, ended)]


def test_items_of_a_micro_batch_each_have_a_span_of_the_shared_call() -> None:
    found = traced()

    async def main(world: World) -> None:
        found.tracing._utc = world.clock.utc
        gateway = opened(world, found, {"latency_s": 1, "many_inputs": 4}, gather={"size": 3, "wait_ms": 10})
        await asyncio.gather(*(gateway.complete(model="m", messages=USER) for _ in range(3)))

    virtual.run(main)
    assert len(found.requests) == 3
    assert [len(found.children(request)) for request in found.requests] == [1, 1, 1]


def test_what_the_caller_has_open_is_the_parent() -> None:
    """The library inside an application that is traced itself: one trace, not two."""
    found = traced()
    application = TracerProvider(shutdown_on_exit=False).get_tracer("application")

    async def main(world: World) -> None:
        gateway = opened(world, found, {"latency_s": 0})
        with application.start_as_current_span("work") as own:
            await gateway.complete(model="m", messages=USER)
            assert found.request.parent == own.get_span_context()

    virtual.run(main)
    assert found.request.kind is SpanKind.INTERNAL


def test_a_job_s_calls_name_their_job(tmp_path: Path) -> None:
    found = traced()

    async def scene() -> str:
        checked = wiring.read_settings({"data_dir": str(tmp_path)}, env={})
        gateway = wiring.build(checked, tracing=found.tracing)
        try:
            await gateway.work()
            handle = await gateway.jobs.submit("chat", {"model": "simulated/instant", "messages": USER})
            async with asyncio.timeout(20):
                await handle.wait()
            return handle.id
        finally:
            await gateway.aclose(1.0)

    job_id = asyncio.run(scene())
    assert said(found.request)["headgate.job.id"] == job_id
    assert found.request.kind is SpanKind.INTERNAL


def test_requests_that_never_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_OPEN", 3)
    found = traced()
    for number in range(5):
        ids = (f"r-{number}",)
        found.tracing(AttemptEnded(request_ids=ids, model="m", upstream="u", attempt=1, duration_ms=1))

    assert list(found.tracing._open) == ["r-2", "r-3", "r-4"]


@pytest.mark.parametrize(
    ("upstream", "expected"),
    [
        ("openai/gpt-5-mini", ("openai", "gpt-5-mini")),
        ("openai/gpt-5-mini#2", ("openai", "gpt-5-mini")),
        ("bedrock/eu.anthropic/claude", ("aws.bedrock", "eu.anthropic/claude")),
        ("simulated", ("simulated", "simulated")),
    ],
)
def test_an_upstream_s_name_tells_provider_and_model(upstream: str, expected: tuple[str, str]) -> None:
    assert provider_and_model(upstream) == expected


# ---- To a collector -----------------------------------------------------------------------------------------


class Collector(ThreadingHTTPServer):
    """An OTLP receiver on loopback."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receive)
        self.received: list[tuple[str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Receive(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        yield server
        server.shutdown()
        thread.join()


async def _one_call(tmp_path: Path, words: str = "hello") -> None:
    settings = {"tracing": True, "data_dir": str(tmp_path)}
    async with headgate.open(settings, env={}) as gateway:
        await gateway.complete(model="simulated/instant", messages=[{"role": "user", "content": words}])


def test_a_collector_gets_the_spans_and_no_word_of_what_was_said(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-gateway")
    asyncio.run(_one_call(tmp_path, "the secret word is xyzzy"))

    ((path, body),) = collector.received
    assert path == "/v1/traces"
    assert b"xyzzy" not in body
    (told,) = ExportTraceServiceRequest.FromString(body).resource_spans
    resource = {one.key: one.value.string_value for one in told.resource.attributes}
    assert resource["service.name"] == "my-gateway"
    attempt, request = told.scope_spans[0].spans
    assert (attempt.name, request.name) == ("chat instant", "chat simulated/instant")
    assert (attempt.parent_span_id, attempt.trace_id) == (request.span_id, request.trace_id)
    assert request.parent_span_id == b""


def test_an_unnamed_service_is_headgate(collector: Collector, tmp_path: Path) -> None:
    asyncio.run(_one_call(tmp_path))

    (told,) = ExportTraceServiceRequest.FromString(collector.received[0][1]).resource_spans
    assert ("service.name", "headgate") in [
        (one.key, one.value.string_value) for one in told.resource.attributes
    ]


def test_a_sampler_that_takes_nothing_sends_nothing(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    asyncio.run(_one_call(tmp_path))

    assert collector.received == []


def test_a_collector_that_is_away_hurts_nobody(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is answered, and the end waits a moment only."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(tracing, "CLOSE_S", 0.2)

    async def scene() -> None:
        async with asyncio.timeout(5):
            await _one_call(tmp_path)

    asyncio.run(scene())


def test_without_its_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)

    with pytest.raises(SettingsError, match=r"pip install '\.\[tracing\]'"):
        asyncio.run(_one_call(tmp_path))


def test_without_tracing_nothing_of_it_is_imported(tmp_path: Path) -> None:
    """Who does not trace pays nothing, not even at the start."""
    code = (
        "import asyncio, sys, headgate\n"
        "async def main():\n"
        f"    async with headgate.open({{'data_dir': {str(tmp_path)!r}}}, env={{}}) as gateway: pass\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_no_span_is_current_after_a_call() -> None:
    """Spans are made afterwards; an application's own must not become children of ours."""
    found = traced()

    async def main(world: World) -> None:
        gateway = opened(world, found, {"latency_s": 0})
        await gateway.complete(model="m", messages=USER)
        assert not trace.get_current_span().get_span_context().is_valid

    virtual.run(main)
