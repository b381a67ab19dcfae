"""What is wrong, in words: each state of an upstream has its sentence, the grave come first."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from server.dashboard.dashboard_stage import a_view, an_alert, read_html, responded

from headgate.calls.status import State
from headgate.core.failures import Failure, FailureKind
from headgate.core.hold import Condition
from headgate.core.operator_pause import OperatorPause
from headgate.observe.recent import REFUSALS
from headgate.observe.series import Series, Span
from headgate.server.dashboard.moments import Moments
from headgate.server.dashboard.upstreams import UpstreamView
from headgate.server.dashboard.wrong import REASONS, Trouble, everything, request_troubles, upstream_trouble

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TELL = Moments(NOW)
LIMIT: Final = "limited to 19.4 starts/s: refusals began above it"


def _words(trouble: Trouble | None) -> str | None:
    return None if trouble is None else read_html(str(trouble.markup())).text


def _told(view: UpstreamView, *others: UpstreamView) -> str | None:
    return _words(upstream_trouble(view, TELL, [view, *others]))


def test_an_upstream_that_works_is_not_mentioned() -> None:
    assert _told(a_view(rt_queue=9)) is None


def test_a_closed_upstream_is_explained_with_its_next_probe_and_who_waits() -> None:
    throttling = a_view(closed=True, probe_in_s=12.0, rt_queue=14)
    why = "summary → openai is closed: throttling, it refused too many calls in a row"
    assert _told(throttling) == f"{why}; next probe in 12 s; 14 calls wait"
    spare = a_view(upstream="ollama")
    assert (
        _told(a_view(closed=True, probe_in_s=12.0), spare)
        == f"{why}; next probe in 12 s; ollama takes its calls"
    )
    failing = a_view(closed=True, condition=Condition.OPEN, probe_in_s=5.0, be_queue=1)
    assert _told(failing, a_view(upstream="ollama", closed=True)) == (
        "summary → openai is closed: failing, too many calls in a row failed; next probe in 5 s; 1 call waits"
    )


@pytest.mark.parametrize(
    ("probe_in_s", "available", "told"),
    [
        (0.0, 3, "; being probed now"),
        (0.2, 3, "; being probed now"),
        (0.0, 4, "; the next call is the probe"),
        (None, 4, "; the next call is the probe"),
    ],
)
def test_a_probe_that_is_due_waits_for_a_call_to_be_sent_as_one(
    probe_in_s: float | None, available: int, told: str
) -> None:
    words = _told(a_view(closed=True, probe_in_s=probe_in_s, available_slots=available))
    assert words is not None
    assert words.endswith(told)


def test_a_misconfigured_upstream_says_what_it_answers_and_what_to_check() -> None:
    refused = Failure(kind=FailureKind.MISCONFIGURED, status=401, code="invalid_api_key")
    view = a_view(condition=Condition.HELD, probe_in_s=30.0, mistake=refused)
    assert _told(view) == (
        "summary → openai is held: misconfigured, it answers 401 invalid_api_key; next probe in 30 s."
        " Check its key, its model name and its permissions."
    )


def test_a_learned_limit_is_trouble_only_while_as_many_wait_for_it_as_are_in_flight() -> None:
    """A limit that is kept to is how it should be."""
    assert _told(a_view(limit=LIMIT)) is None
    assert _told(a_view(limit=LIMIT, available_slots=1, rt_queue=2)) is None
    assert (
        _told(a_view(limit=LIMIT, available_slots=1, rt_queue=2, be_queue=1))
        == f"summary → openai: at its limit, 3 calls wait; it is {LIMIT}"
    )


def test_a_full_queue_and_many_who_wait_have_their_sentences() -> None:
    full = a_view(accepting=False, rt_queue=20, limit=LIMIT)
    assert _told(full) == "summary → openai: full, 20 wait and new calls are refused"
    assert _told(a_view(rt_queue=10)) == "summary → openai: busy, 10 wait for 4 slots"


@pytest.mark.parametrize(
    ("strict", "then"), [(True, "failed calls are not retried"), (False, "throttled calls wait longer")]
)
def test_a_retry_budget_that_is_nearly_used_up_says_what_follows(strict: bool, then: str) -> None:
    assert _told(a_view(budget=0.1, strict=strict)) == (
        f"summary → openai: failing often, 10% of its retry budget is left; without one {then}"
    )


@pytest.mark.parametrize(
    ("status", "state", "grave"),
    [
        ({}, State.OPEN, None),
        ({"closed": True}, State.THROTTLING, False),
        ({"closed": True, "condition": Condition.OPEN}, State.FAILING, True),
        ({"condition": Condition.HELD, "closed": True}, State.HELD, True),
        ({"stopped": True, "accepting": False, "condition": Condition.HELD}, State.PAUSED, None),
    ],
)
def test_an_upstream_is_in_one_state_and_only_failures_and_a_wrong_set_up_are_grave(
    status: dict[str, Any], state: State, grave: bool | None
) -> None:
    view = a_view(**status)
    trouble = upstream_trouble(view, TELL)
    assert view.status.state is state
    assert view.takes_calls is (state is State.OPEN)
    assert (None if trouble is None else trouble.grave) is grave


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
        a_view(stopped=True, accepting=False),
        a_view(model="chat", closed=True, condition=Condition.OPEN, probe_in_s=0.0, available_slots=3),
    ]
    found = everything(views, pauses, Span(0), [an_alert("look here")], TELL, store_works=False)
    assert [_words(trouble) for trouble in found] == [
        "The database: does not answer, jobs, batches and keys must wait. Direct calls go on.",
        "Alert: look here",
        "chat → openai is closed: failing, too many calls in a row failed; being probed now",
        "summary: paused, by ann 0 s ago; its calls are refused until it is resumed",
    ]
