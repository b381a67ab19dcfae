"""Traces: a span per request, with a child for each attempt and each wait at a gate. Made of events, when a request has ended.

Only what a provider must be told before its answer is drawn earlier: the trace's id and that of the attempt.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headgate.core.events import AttemptEnded, Cancelled, Event, Responded, WaitEnded
from headgate.machine.context import JOB_ID, REQUEST_IDS, TRACEPARENT
from headgate.observe import spans

MOST_OPEN: Final = 20_000
"""Requests that have begun and not ended; a slot that is only held never ends as one."""
MOST_STEPS: Final = 100
CLOSE_S: Final = 5.0
"""How long a collector that dawdles may keep a process from its end."""
_W3C: Final = TraceContextTextMapPropagator()
_Step: TypeAlias = tuple[int, AttemptEnded | WaitEnded, int | None]
"""When it ended, what it was, and the id that was promised for its span."""


class _Ids(RandomIdGenerator):
    """Random, but for the next one if it was promised to somebody."""

    def __init__(self) -> None:
        self.next_trace_id: int | None = None
        self.next_span_id: int | None = None

    def generate_trace_id(self) -> int:
        promised, self.next_trace_id = self.next_trace_id, None
        return promised or super().generate_trace_id()

    def generate_span_id(self) -> int:
        promised, self.next_span_id = self.next_span_id, None
        return promised or super().generate_span_id()


class _Request:
    """One that is under way."""

    __slots__ = ("parent", "promised", "steps", "trace_id")

    def __init__(self) -> None:
        self.parent: Context | None = None
        self.trace_id: int | None = None
        """Drawn when a provider had to be told, unless the parent has one."""
        self.promised: int | None = None
        self.steps: list[_Step] = []


class Tracing:
    """`gateway.listen(tracing)`. What becomes of the spans is the processor's business."""

    def __init__(self, processor: SpanProcessor, *, utc: Callable[[], datetime]) -> None:
        self._utc = utc
        self._ids = _Ids()
        self._provider = TracerProvider(resource=_resource(), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("headgate")
        self._open: dict[str, _Request] = {}

    def traceparent(self) -> bytes:
        """The header line for what is being sent to a provider now; none where it is not one request's."""
        request_ids = REQUEST_IDS.get()
        if len(request_ids) != 1:
            return b""
        request = self._under_way(request_ids[0])
        if request.parent is None:
            request.parent = _parent()
        caller = trace.get_current_span(request.parent).get_span_context()
        if not caller.is_valid and request.trace_id is None:
            request.trace_id = self._ids.generate_trace_id()
        trace_id = request.trace_id or caller.trace_id
        request.promised = self._ids.generate_span_id()
        decision = self._provider.sampler.should_sample(request.parent, trace_id, "").decision
        sampled = decision is Decision.RECORD_AND_SAMPLE
        return b"traceparent: 00-%032x-%016x-%02x\r\n" % (trace_id, request.promised, sampled)

    def __call__(self, event: Event) -> None:
        kind = type(event)
        if kind is AttemptEnded or kind is WaitEnded:
            self._note(event)  # type: ignore[arg-type]  # `isinstance` costs several times as much here
        elif kind is Responded or kind is Cancelled:
            request = self._open.pop(event.request_id, None) or _Request()  # type: ignore[union-attr]
            self._tell(request, event)  # type: ignore[arg-type]

    async def aclose(self) -> None:
        """Send what is left, but not for long."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def send() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # Nobody waits any more.
                loop.call_soon_threadsafe(sent.set)

        # A daemon of its own: the loop's executor would be waited for at the end, however long it takes.
        threading.Thread(target=send, name="headgate-tracing", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await sent.wait()

    def _under_way(self, request_id: str) -> _Request:
        request = self._open.get(request_id)
        if request is None:
            request = self._open[request_id] = _Request()
            if len(self._open) > MOST_OPEN:
                del self._open[next(iter(self._open))]
        return request

    def _note(self, event: AttemptEnded | WaitEnded) -> None:
        at = self._now()
        for request_id in event.request_ids:
            request = self._under_way(request_id)
            promised = None
            if type(event) is AttemptEnded:
                promised, request.promised = request.promised, None
            if len(request.steps) < MOST_STEPS:
                request.steps.append((at, event, promised))

    def _tell(self, request: _Request, event: Responded | Cancelled) -> None:
        """In the context of whoever asked: without a traceparent the span that is open there is the parent."""
        ended_at, job_id = self._now(), JOB_ID.get()
        parent = _parent() if request.parent is None else request.parent
        self._ids.next_trace_id = request.trace_id
        span = self._tracer.start_span(
            f"{event.operation} {event.model}",
            parent,
            SpanKind.INTERNAL if job_id is not None or _is_local(parent) else SpanKind.SERVER,
            spans.request_attributes(event, job_id),
            start_time=_started_at(ended_at, request, event),
        )
        self._ids.next_trace_id = None
        if not span.is_recording():
            return
        if isinstance(event, Responded) and event.error is not None:
            span.set_status(Status(StatusCode.ERROR, event.error))
        inside = trace.set_span_in_context(span, parent)
        for at, step, promised in request.steps:
            self._ids.next_span_id = promised
            self._step(at, step, inside, event.operation).end(at)
        span.end(ended_at)

    def _step(self, at: int, step: AttemptEnded | WaitEnded, inside: Context, operation: str) -> Span:
        if isinstance(step, WaitEnded):
            started_at, told = at - _ns(step.wait_ms), spans.wait_attributes(step)
            return self._tracer.start_span(spans.QUEUE, inside, attributes=told, start_time=started_at)
        name = f"{operation} {spans.provider_and_model(step.upstream)[1]}"
        told, started_at = spans.attempt_attributes(step, operation), at - _ns(step.duration_ms)
        span = self._tracer.start_span(name, inside, SpanKind.CLIENT, told, start_time=started_at)
        if step.failure is not None:
            span.set_status(Status(StatusCode.ERROR, step.failure.error))
        return span

    def _now(self) -> int:
        return int(self._utc().timestamp() * 1_000_000_000)


def _parent() -> Context:
    """The span that is open in this process, or the one whose step the request says it is, or none."""
    if trace.get_current_span().get_span_context().is_valid:
        return trace.set_span_in_context(trace.get_current_span(), Context())
    told = TRACEPARENT.get()
    return _W3C.extract({"traceparent": told}, Context()) if told is not None else Context()


def _is_local(parent: Context) -> bool:
    caller = trace.get_current_span(parent).get_span_context()
    return caller.is_valid and not caller.is_remote


def _started_at(ended_at: int, request: _Request, event: Responded | Cancelled) -> int:
    """Nobody measured a cancelled one: it is as old as the first thing that is known of it."""
    if isinstance(event, Responded):
        return ended_at - _ns(event.latency_ms)
    begun = [
        at - _ns(step.wait_ms if isinstance(step, WaitEnded) else step.duration_ms)
        for at, step, _ in request.steps
    ]
    return min(begun, default=ended_at)


def _ns(ms: float) -> int:
    return int(ms * 1_000_000)


def _resource() -> Resource:
    """As `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` say; unnamed, it is headgate."""
    found = Resource.create()
    unnamed = str(found.attributes[SERVICE_NAME]).startswith("unknown_service")
    return found.merge(Resource({SERVICE_NAME: "headgate"})) if unnamed else found
