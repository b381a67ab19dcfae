"""Tracing, if its extra is installed. Where spans go is read from the standard `OTEL_…` variables by the exporter itself."""

from typing import TYPE_CHECKING

from headgate.core.errors import SettingsError
from headgate.core.ports.clock import Clock

if TYPE_CHECKING:
    from headgate.observe.tracing import Tracing


def build_tracing(clock: Clock) -> "Tracing":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        from headgate.observe.tracing import Tracing  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError.missing_extra("tracing", "tracing") from error
    return Tracing(BatchSpanProcessor(OTLPSpanExporter()), utc=clock.utc)
