"""How often a feeder knocks: the summariser's series, to the second."""

import pytest

from headgate.core.feeding import Pace


def test_refusals_in_a_row_follow_the_series_and_stay_at_its_end() -> None:
    """30 → 60 → 120 → 240 → 300 s: a gateway that is full must not be asked every ten seconds by everybody."""
    pace, waits = Pace(), []
    for _ in range(7):
        pace = pace.refused()
        waits.append(pace.wait_s())
    assert waits == [30, 60, 120, 240, 300, 300, 300]


def test_the_first_success_leads_back_to_every_ten_seconds() -> None:
    pace = Pace().refused().refused().refused().succeeded()
    assert pace.wait_s() == 10
    assert pace.refused().wait_s() == 30


@pytest.mark.parametrize(
    ("refusals", "retry_after_s", "expected"),
    [(0, 0, 10), (1, 5, 30), (1, 45, 45), (3, 119, 120), (3, 121, 121), (5, 60, 300), (9, 3600, 3600)],
)
def test_what_the_gateway_asks_for_is_a_floor(refusals: int, retry_after_s: float, expected: float) -> None:
    """The feeder of old logged Retry-After and ignored it."""
    assert Pace(refusals=refusals).wait_s(retry_after_s) == expected


def test_the_usual_pace_is_the_caller_s() -> None:
    assert Pace(every_s=0.5).wait_s() == 0.5


def test_more_requests_go_together_while_all_are_accepted_and_one_alone_after_a_refusal() -> None:
    """Those that are in flight together are refused together: the first after a refusal goes alone."""
    pace, together = Pace(), []
    for _ in range(200):
        together.append(pace.together)
        pace = pace.succeeded()
    assert together[:8] == [1] * 8
    assert together == sorted(together)
    assert set(together) == set(range(1, 17))
    assert pace.refused().together == 1
