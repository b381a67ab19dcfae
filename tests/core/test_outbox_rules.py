"""The rules of an outbox: which tries count, which leave a doubt, and how long a doubt may be trusted to a key."""

import pytest

from headgate.core.outbox import (
    EntryState,
    Failed,
    NotNow,
    Outcome,
    Standing,
    Taken,
    again,
    begin,
    conclude,
)

HOUR = 3600.0
HORIZON_S = 60 * HOUR


def tried(standing: Standing, outcome: Outcome, *, now: float = 0.0) -> Standing:
    begun = begin(standing, now=now, horizon_s=HORIZON_S)
    assert begun.state is EntryState.WAITING
    return conclude(standing, begun, outcome)


def test_three_answered_failures_and_it_is_failed_with_its_reason() -> None:
    standing = Standing()
    for count in (1, 2, 3):
        assert standing.state is EntryState.WAITING
        standing = tried(standing, Failed("not today", nothing_stored=True))
        assert standing.failures == count
    assert (standing.state, standing.reason) == (EntryState.FAILED, "not today")


@pytest.mark.parametrize("nothing_stored", [True, False])
def test_no_network_and_a_full_gateway_cost_nothing(nothing_stored: bool) -> None:
    """A night offline must not end as three failures."""
    standing = Standing()
    for hour in range(50):
        standing = tried(standing, NotNow(nothing_stored=nothing_stored), now=hour * HOUR)
    assert (standing.state, standing.failures) == (EntryState.WAITING, 0)


def test_what_never_arrived_may_wait_for_ever() -> None:
    standing = tried(Standing(), NotNow(nothing_stored=True), now=0.0)
    begun = begin(standing, now=1000 * HOUR, horizon_s=HORIZON_S)
    assert (begun.state, begun.doubt_since) == (EntryState.WAITING, 1000 * HOUR)


@pytest.mark.parametrize(
    ("age_h", "state"), [(59.9, EntryState.WAITING), (60, EntryState.WAITING), (60.1, EntryState.FAILED)]
)
def test_a_doubt_is_trusted_to_its_key_up_to_the_horizon(age_h: float, state: EntryState) -> None:
    """Past the gateway's 72 hours the same key would be a second job."""
    standing = tried(Standing(), NotNow(nothing_stored=False), now=0.0)
    begun = begin(standing, now=age_h * HOUR, horizon_s=HORIZON_S)
    assert begun.state is state
    assert state is EntryState.WAITING or "outcome unknown" in str(begun.reason)


@pytest.mark.parametrize("outcome", [NotNow(nothing_stored=True), Failed("no", nothing_stored=True)])
def test_a_later_no_does_not_take_an_earlier_doubt_away(outcome: Outcome) -> None:
    """A gateway that is full says so before it looks at keys: the first try may still be in its store."""
    standing = tried(Standing(), NotNow(nothing_stored=False), now=5.0)
    assert tried(standing, outcome, now=100.0).doubt_since == 5.0


def test_the_doubt_is_as_old_as_the_first_try_that_left_it() -> None:
    standing = tried(Standing(), NotNow(nothing_stored=False), now=5.0)
    assert tried(standing, NotNow(nothing_stored=False), now=100.0).doubt_since == 5.0


def test_what_was_taken_is_sent_and_says_as_what() -> None:
    standing = tried(Standing(failures=2, reason="before"), Taken("job-1"))
    assert (standing.state, standing.server_id, standing.reason) == (EntryState.SENT, "job-1", None)


def test_again_forgets_failures_and_doubt() -> None:
    """A person has looked. The key stays, so a gateway that still knows it gives the same job."""
    failed = Standing(state=EntryState.FAILED, failures=3, doubt_since=1.0, reason="why")
    assert again(failed) == Standing()
