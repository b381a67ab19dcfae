"""What is wrong, in words: each state of an upstream has its sentence, the grave come first."""

from datetime import UTC, datetime
from typing import Any

from server.dashboard.dashboard_stage import an_alert, read_html, responded

from headgate.core.failures import Failure, FailureKind
from headgate.core.health import Condition
from headgate.core.operator_pause import OperatorPause
from headgate.dispatch.status import UpstreamStatus
from headgate.observe.recent import REFUSALS
from headgate.observe.series import Series, Span
from headgate.server.dashboard.moments import Moments
from headgate.server.dashboard.upstreams import UpstreamView
from headgate.server.dashboard.wrong import REASONS, Trouble, everything, request_troubles, upstream_trouble

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TELL = Moments(NOW)


def _view(
    *, budget: float = 1.0, probed_in_s: float | None = None, mistake: Failure | None = None, **status: Any
) -> UpstreamView:
    told: dict[str, Any] = {
        "model": "summary",
        "upstream": "openai",
        "condition": Condition.OK,
        "pause_s": 0.0,
        "stopped": False,
        "rt_queue": 0,
        "be_queue": 0,
        "total_slots": 4,
        "available_slots": 4,
        "accepting": True,
        "max_queue_depth": 20,
        **status,
    }
    return UpstreamView(UpstreamStatus(**told), budget, probed_in_s, mistake)


def _words(trouble: Trouble | None) -> str | None:
    return None if trouble is None else read_html(str(trouble.markup())).text


def _told(view: UpstreamView, *others: UpstreamView) -> str | None:
    return _words(upstream_trouble(view, TELL, [view, *others]))


def test_an_upstream_that_works_is_not_mentioned() -> None:
    assert _told(_view(rt_queue=9)) is None


def test_each_trouble_has_its_sentence() -> None:
    refused = Failure(kind=FailureKind.MISCONFIGURED, status=401, code="invalid_api_key")
    spare = _view(upstream="ollama")
    assert _told(_view(pause_s=12.0, rt_queue=14)) == "summary → openai: throttled, paused 12 s more; 14 wait"
    assert (
        _told(_view(pause_s=12.0), spare)
        == "summary → openai: throttled, paused 12 s more; ollama takes its calls"
    )
    assert (
        _told(_view(condition=Condition.OPEN, probed_in_s=5.0))
        == "summary → openai: down, it kept failing and is left alone; tried again in 5 s"
    )
    assert _told(_view(condition=Condition.HELD, probed_in_s=None, mistake=refused)) == (
        "summary → openai: misconfigured, it answers 401 invalid_api_key; the next call tries it again."
        " Check its key, its model name and its permissions."
    )
    assert (
        _told(_view(accepting=False, rt_queue=20))
        == "summary → openai: full, 20 wait and new calls are refused"
    )
    assert _told(_view(rt_queue=10)) == "summary → openai: busy, 10 wait for 4 slots"
    assert (
        _told(_view(budget=0.1))
        == "summary → openai: failing often, 10% of its retry budget is left; without one nothing is retried"
    )


def _minute(*errors: str | None) -> list[str | None]:
    series = Series(lambda: 0.0)
    for error in errors:
        series(responded(error=error))
    return [_words(trouble) for trouble in request_troubles(series.together(1))]


def test_many_failures_and_many_refusals_are_told_apart_with_their_commonest_reason() -> None:
    """Who has no room is busy, who fails is ill: somebody has to look at the one, not always at the other."""
    fine = [None] * 25
    assert _minute("queue_full", "queue_full", *fine) == [
        "2 of the last minute's 27 requests were refused: the queue was full (queue_full)"
    ]
    assert _minute("queue_full", "queue_full", "transient 503", "transient", "broken", *fine) == [
        "3 of the last minute's 30 requests failed, 2 of them because the provider was down or slow (transient)",
        "2 of the last minute's 30 requests were refused: the queue was full (queue_full)",
    ]
    assert _minute("queue_full", *fine) == []
    assert _minute() == []


def test_every_reason_has_words() -> None:
    assert set(REFUSALS) | set(FailureKind) - {FailureKind.CANCELLED} <= set(REASONS)


def test_the_grave_come_first_and_a_paused_model_is_told_once() -> None:
    pauses = {"summary": OperatorPause("summary", NOW, "ann")}
    views = [
        _view(stopped=True, accepting=False),
        _view(model="chat", condition=Condition.OPEN, probed_in_s=0.0),
    ]
    found = everything(views, pauses, Span(0), [an_alert("look here")], TELL, store_works=False)
    assert [_words(trouble) for trouble in found] == [
        "The database: does not answer, jobs, batches and keys must wait. Direct calls go on.",
        "Alert: look here",
        "chat → openai: down, it kept failing and is left alone; being tried now",
        "summary: paused, by ann 0 s ago; its calls are refused until it is resumed",
    ]
