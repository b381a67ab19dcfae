"""The last ten minutes as four charts."""

from collections.abc import Callable, Sequence
from typing import Final

from headgate.core.call import Lane
from headgate.observe.series import SPAN_S, Series, Span
from headgate.server.dashboard.charts import Line, bars, curves
from headgate.server.dashboard.html import Markup, el, group
from headgate.server.dashboard.moments import amount, milliseconds

SHOWN_SPANS: Final = 120
_SINCE: Final = f"{SHOWN_SPANS * SPAN_S // 60} min ago"


class Minutes:
    """Drawn once a second at most, for everybody who looks."""

    def __init__(self, series: Series, now: Callable[[], float]) -> None:
        self._series = series
        self._now = now
        self._second = -1
        self._drawn = group()

    def draw(self) -> Markup:
        second = int(self._now())
        if second != self._second:
            self._second = second
            self._drawn = _charts(self._series.spans(SHOWN_SPANS))
        return self._drawn


def _charts(spans: Sequence[Span]) -> Markup:
    return el("div", _requests(spans), _latency(spans), _waits(spans), _troubles(spans), class_="charts")


def _requests(spans: Sequence[Span]) -> Markup:
    return _rates(
        "Requests",
        ("answered", "c1", [span.answered for span in spans]),
        ("failed", "c2", [span.failed for span in spans]),
        ("refused", "c3", [span.refused for span in spans]),
        ("cancelled", "c4", [span.cancelled for span in spans]),
    )


def _troubles(spans: Sequence[Span]) -> Markup:
    return _rates(
        "Trouble",
        ("refused by gates", "c2", [span.gate_refusals for span in spans]),
        ("retries", "c3", [span.retries for span in spans]),
    )


def _latency(spans: Sequence[Span]) -> Markup:
    def within(share: float) -> list[float | None]:
        return [span.latency.percentile_ms(share) for span in spans]

    lines = [Line("half within", "c1", within(0.5)), Line("99 % within", "c3", within(0.99))]
    return curves("Latency of answers", lines, words=milliseconds, since=_SINCE)


def _waits(spans: Sequence[Span]) -> Markup:
    def waited(lane: Lane) -> list[float | None]:
        return [span.waits[lane].percentile_ms(0.99) for span in spans]

    lines = [Line("interactive", "c1", waited(Lane.INTERACTIVE)), Line("batch", "c4", waited(Lane.BATCH))]
    return curves("Wait at gates, 99 % within", lines, words=milliseconds, since=_SINCE)


def _rates(title: str, *counted: tuple[str, str, Sequence[int]]) -> Markup:
    lines = [Line(name, tone, [count / SPAN_S for count in counts]) for name, tone, counts in counted]
    return bars(title, lines, words=lambda value: f"{amount(value)}/s", since=_SINCE)
