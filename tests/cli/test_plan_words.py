"""Numbers as people read them on the plan's screen."""

import pytest

from headgate.cli.plan_words import amount, learned_in_words, length, percent
from headgate.planner.summary import Learned


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0 ms"),
        (0.85, "850 ms"),
        (0.9996, "1 s"),
        (12.5, "12.5 s"),
        (99.96, "1 min 40 s"),
        (302.5, "5 min 2 s"),
        (900, "15 min"),
        (5999.6, "1 h 40 min"),
        (7200, "2 h"),
        (13_320, "3 h 42 min"),
    ],
)
def test_a_length_of_time_has_two_units_at_most(seconds: float, told: str) -> None:
    assert length(seconds) == told


@pytest.mark.parametrize(
    ("share", "told"),
    [(0, "0 %"), (0.004, "0.4 %"), (0.02, "2 %"), (0.0996, "10 %"), (0.4, "40 %"), (1, "100 %")],
)
def test_small_shares_have_a_digit_more(share: float, told: str) -> None:
    assert percent(share) == told


def test_means_are_whole_where_they_are_whole() -> None:
    assert [amount(number) for number in (0, 3.0, 87.24, 2283.8)] == ["0", "3", "87.2", "2,283.8"]


LIMIT = "limited to 19.4 starts/s: refusals began above it"


@pytest.mark.parametrize(
    ("state", "limit", "share", "runs", "told"),
    [
        ("open", "", 0.0, 1, "no limit"),
        ("open", "", 0.48, 1, "no limit; 48 % of the last calls were refused"),
        ("open", LIMIT, 0.004, 1, LIMIT),
        ("open", LIMIT, 0.02, 1, f"{LIMIT}; 2 % of the last calls were refused"),
        ("open", LIMIT, 0.0, 5, f"{LIMIT} (first run; 4 of 5 have a limit)"),
        ("closed: throttling", "", 0.9, 1, "closed: throttling"),
        ("closed: failing", LIMIT, 0.9, 5, f"closed: failing; {LIMIT}"),
    ],
)
def test_what_was_learned_is_told_in_one_line(
    state: str, limit: str, share: float, runs: int, told: str
) -> None:
    learned = Learned(upstream="openai/gpt-5", state=state, limit=limit, limited_runs=4, refused_share=share)
    assert learned_in_words(learned, runs) == told
