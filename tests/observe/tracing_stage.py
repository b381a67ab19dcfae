"""Tracing whose spans stay in memory, and ways to look at them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate.machine.clock import SystemClock
from headgate.observe.tracing import Tracing


@dataclass
class Traced:
    """What was traced."""

    tracing: Tracing
    exporter: InMemorySpanExporter

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    @property
    def requests(self) -> list[ReadableSpan]:
        """The spans that are no child of another of these."""
        ids = {_context(span).span_id for span in self.spans}
        return [span for span in self.spans if span.parent is None or span.parent.span_id not in ids]

    @property
    def request(self) -> ReadableSpan:
        (span,) = self.requests
        return span

    def children(self, of: ReadableSpan) -> list[ReadableSpan]:
        """In the order of their beginnings."""
        found = [span for span in self.spans if span.parent and span.parent.span_id == _context(of).span_id]
        return sorted(found, key=lambda span: span.start_time or 0)


def traced(utc: Callable[[], datetime] | None = None) -> Traced:
    exporter = InMemorySpanExporter()
    return Traced(Tracing(SimpleSpanProcessor(exporter), utc=utc or SystemClock().utc), exporter)


def _context(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def trace_id(span: ReadableSpan) -> str:
    return f"{_context(span).trace_id:032x}"


def span_id(span: ReadableSpan) -> str:
    return f"{_context(span).span_id:016x}"


def seconds(span: ReadableSpan, since: datetime) -> tuple[float, float]:
    """When it began and ended."""
    assert span.start_time is not None
    assert span.end_time is not None
    begin_ns = since.timestamp() * 1e9
    return round((span.start_time - begin_ns) / 1e9, 3), round((span.end_time - begin_ns) / 1e9, 3)


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
