"""What became of a call: the last ones are remembered, put together from events, and nobody sees another's."""

from datetime import UTC, datetime, timedelta

import pytest

from headgate.core.answer import Usage
from headgate.core.call import Lane
from headgate.core.errors import UnknownRequest
from headgate.core.events import AttemptEnded, Cancelled, Event, RequestRefused, Responded, RetryScheduled
from headgate.core.failures import Failure, FailureKind
from headgate.observe import recent
from headgate.observe.recent import MOST_STEPS, RecentRequests, Status

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
DOWN = Failure(kind=FailureKind.TRANSIENT, status=503)


def remembering(*events: Event, most: int = 10) -> RecentRequests:
    requests = RecentRequests(lambda: NOON, most)
    for event in events:
        requests(event)
    return requests


def attempt(
    request_id: str, upstream: str = "a", number: int = 1, failure: Failure | None = None
) -> AttemptEnded:
    return AttemptEnded(
        request_ids=(request_id,),
        model="m",
        upstream=upstream,
        attempt=number,
        duration_ms=5.0,
        failure=failure,
    )


def ended(request_id: str, *, tenant: str = "local", model: str = "m", error: str | None = None) -> Responded:
    return Responded(
        request_id=request_id,
        agent_id="crew",
        model=model,
        upstream=None if error else "b",
        lane=Lane.BATCH,
        attempts=3,
        latency_ms=1500.0,
        queue_ms=20.0,
        usage=Usage(3, 4),
        error=error,
        tenant=tenant,
        cost_usd=0.25,
    )


def test_a_story_has_every_attempt_and_wait_in_order() -> None:
    requests = remembering(
        attempt("r", failure=DOWN),
        RetryScheduled(request_ids=("r",), model="m", upstream="a", attempt=1, failure=DOWN, delay_ms=900.0),
        attempt("r", number=2, failure=DOWN),
        RequestRefused(request_ids=("r",), model="m", upstream="x", lane=Lane.BATCH, reason="queue_full"),
        attempt("r", upstream="b"),
        ended("r"),
    )

    story = requests.get("r", tenant="local")

    told = [(one.upstream, one.attempt, one.error, one.wait_ms) for one in story.attempts]
    assert told == [("a", 1, "transient 503", 900.0), ("a", 2, "transient 503", None), ("b", 1, None, None)]
    assert [(one.upstream, one.reason) for one in story.refusals] == [("x", "queue_full")]
    assert (story.status, story.upstream, story.queue_ms, story.cost_usd) == (Status.OK, "b", 20.0, 0.25)
    assert (story.started_at, story.ended_at) == (NOON - timedelta(seconds=1.5), NOON)


def test_a_call_that_was_left_is_told_as_such() -> None:
    requests = remembering(attempt("r"), Cancelled(request_id="r", model="m", lane=Lane.INTERACTIVE))

    story = requests.get("r", tenant="local")

    assert (story.status, story.latency_ms, len(story.attempts)) == (Status.CANCELLED, None, 1)


def test_another_tenant_s_call_looks_like_an_unknown_one() -> None:
    requests = remembering(ended("mine"), ended("theirs", tenant="acme"))

    with pytest.raises(UnknownRequest) as foreign:
        requests.get("theirs", tenant="local")
    with pytest.raises(UnknownRequest) as unknown:
        requests.get("nobody", tenant="local")
    assert str(foreign.value).replace("theirs", "nobody") == str(unknown.value)
    assert [story.id for story in requests.list(tenant="local")] == ["mine"]
    assert [story.id for story in requests.list(tenant=None)] == ["theirs", "mine"]
    assert requests.get("theirs", tenant=None).tenant == "acme"


def test_only_the_last_ones_are_kept() -> None:
    requests = remembering(*(ended(f"r{number}") for number in range(25)), most=10)

    assert [story.id for story in requests.list(tenant=None, limit=100)] == [
        f"r{number}" for number in range(24, 14, -1)
    ]
    with pytest.raises(UnknownRequest, match="remembered"):
        requests.get("r0", tenant=None)


def test_pages_and_filters() -> None:
    requests = remembering(
        ended("r1"), ended("r2", error="queue_full"), ended("r3", model="n"), ended("r4", error="expired")
    )

    def ids(**asked: object) -> list[str]:
        return [story.id for story in requests.list(tenant="local", **asked)]  # type: ignore[arg-type]

    assert ids(limit=2) == ["r4", "r3"]
    assert ids(limit=2, after="r3") == ["r2", "r1"]
    assert ids(after="forgotten") == []
    assert ids(status=Status.FAILED) == ["r4"]
    assert ids(status=Status.REFUSED) == ["r2"]
    assert ids(status=Status.OK, model="n") == ["r3"]


def test_calls_that_never_end_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A held slot makes attempts and no end; a call that insists is refused again and again."""
    monkeypatch.setattr(recent, "MOST_OPEN", 5)
    requests = remembering(*(attempt(f"r{number}") for number in range(20)))
    for number in range(MOST_STEPS * 2):
        requests(attempt("r19", number=number))
    for request_id in ("r0", "r19"):
        requests(ended(request_id))

    assert len(requests.get("r0", tenant=None).attempts) == 0
    assert len(requests.get("r19", tenant=None).attempts) == MOST_STEPS
