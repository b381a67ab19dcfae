"""The last minutes in spans: counted in place, bounded, and the same for whoever looks."""

from server.dashboard.dashboard_stage import responded

from headgate.core import events
from headgate.core.call import Lane
from headgate.core.failures import Failure, FailureKind
from headgate.observe.series import BOUNDS_MS, MOST_SPANS, SPAN_S, Series, Spread


class _Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_events_are_counted_in_the_span_in_which_they_come() -> None:
    time = _Time()
    series = Series(time)
    failure = Failure(kind=FailureKind.THROTTLED)
    series(responded(latency_ms=100.0))
    series(responded(error="queue_full", lane=Lane.BATCH, queue_ms=900.0))
    series(responded(error="transient 503 overloaded"))
    time.now += SPAN_S
    series(events.Cancelled(request_id="r", model="m", lane=Lane.BATCH))
    series(
        events.RetryScheduled(
            request_ids=("r",), model="m", upstream="u", attempt=1, failure=failure, delay_ms=1.0
        )
    )
    series(
        events.RequestRefused(
            request_ids=("r",), model="m", upstream="u", lane=Lane.BATCH, reason="queue_full"
        )
    )
    first, second = series.spans(2)
    assert (first.answered, first.failed, first.refused) == (1, 1, 1)
    assert (first.cancelled, first.retries, first.gate_refusals) == (0, 0, 0)
    assert (second.answered, second.failed, second.refused) == (0, 0, 0)
    assert (second.cancelled, second.retries, second.gate_refusals) == (1, 1, 1)
    both = series.together(2)
    assert (both.ended, both.retries, both.refused, both.gate_refusals) == (4, 1, 1, 1)
    assert both.reasons == {"queue_full": 1, "transient": 1}
    assert both.latency.percentile_ms(0.5) == 100.0
    batch_ms = both.waits[Lane.BATCH].percentile_ms(0.99)
    assert batch_ms is not None
    assert 900 <= batch_ms < 900 * 1.26


def test_what_is_long_ago_is_forgotten_and_quiet_times_are_empty() -> None:
    time = _Time()
    series = Series(time)
    for _ in range(3 * MOST_SPANS):
        series(responded())
        time.now += SPAN_S
    assert series.together(10 * MOST_SPANS).answered == MOST_SPANS
    time.now += SPAN_S * MOST_SPANS
    assert [span.ended for span in series.spans(10)] == [0] * 10
    assert series.together(10).ended == 0


def test_a_percentile_is_off_by_a_step_at_most() -> None:
    """Ten steps to a decade: what is shown is never below the truth, and never a third above it."""
    spread = Spread()
    values = [1.5 * 1.01**number for number in range(1000)]
    for value in values:
        spread.put(value)
    for share in (0.5, 0.9, 0.99):
        shown = spread.percentile_ms(share)
        assert shown is not None
        assert values[int(share * 1000) - 1] <= shown < values[int(share * 1000) - 1] * 1.26
    assert Spread().percentile_ms(0.5) is None
    slow = Spread()
    slow.put(10**9)
    assert slow.percentile_ms(0.5) == BOUNDS_MS[-1]


def test_the_running_span_counts_only_for_as_long_as_it_lasts() -> None:
    time = _Time()
    time.now = 1000.0 + 2
    assert Series(time).covered_s(2) == SPAN_S + 2
