"""The board of alerts: fires at the threshold, clears below a lower one held for a while, once each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.alert_rules import AlertRules, Rule, words
from headgate.core.alerts import MOST_ACTIVE, Alert, Board, Level, Reading
from headgate.core.problems import InvalidSettings
from headgate.core.sliding import SlidingTally

LEVEL = Level(fires_above=10, clears_at=5, calm_s=60)


def a_board() -> Board:
    return Board({"r": LEVEL}, lambda reading, threshold: f"{reading.value:g} > {threshold:g}")


def told(board: Board, *steps: tuple[float, float | None]) -> list[tuple[float, str]]:
    """At each moment, what changed by this value; None: it cannot be read."""
    return [
        (now, "fired" if alert.cleared_at is None else "cleared")
        for now, value in steps
        for alert in board.judge([] if value is None else [Reading("r", value)], now)
    ]


@pytest.mark.parametrize(
    ("steps", "changes"),
    [
        ([(0, 10)], []),
        ([(0, 10.1)], [(0, "fired")]),
        ([(0, 11), (5, 12), (10, 11)], [(0, "fired")]),
        # Between the two numbers nothing changes, however long.
        ([(0, 11), (5, 6), (1000, 6)], [(0, "fired")]),
        ([(0, 11), (5, 5), (64, 5)], [(0, "fired")]),
        ([(0, 11), (5, 5), (65, 5)], [(0, "fired"), (65, "cleared")]),
        # The calm must hold without a break.
        ([(0, 11), (5, 5), (60, 6), (65, 5), (124, 5)], [(0, "fired")]),
        ([(0, 11), (5, 5), (60, 6), (65, 5), (125, 5)], [(0, "fired"), (125, "cleared")]),
        # What cannot be read any more is calm.
        ([(0, 11), (5, None), (65, None)], [(0, "fired"), (65, "cleared")]),
        ([(0, 11), (5, 5), (65, 5), (70, 11)], [(0, "fired"), (65, "cleared"), (70, "fired")]),
    ],
)
def test_when_it_fires_and_when_it_clears(
    steps: list[tuple[float, float | None]], changes: list[tuple[float, str]]
) -> None:
    assert told(a_board(), *steps) == changes


def test_an_alert_tells_its_newest_value_and_when_it_was_over() -> None:
    board = a_board()
    board.judge([Reading("r", 11)], 0)
    assert board.judge([Reading("r", 20)], 5) == []
    (active,) = board.active
    assert active == Alert(rule="r", subject="", message="20 > 10", value=20, threshold=10, fired_at=0)
    board.judge([], 10)
    (cleared,) = board.judge([], 70)
    assert (cleared.fired_at, cleared.cleared_at, board.active) == (0, 70, ())


def test_subjects_are_incidents_of_their_own_and_bounded() -> None:
    board = a_board()
    fired = board.judge([Reading("r", 11, f"upstream {number}") for number in range(MOST_ACTIVE + 5)], 0)
    assert len(fired) == len(board.active) == MOST_ACTIVE
    assert len(board.judge([Reading("r", 11, "upstream 0")], 1)) == 0
    assert [alert.subject for alert in board.active[:2]] == ["upstream 0", "upstream 1"]


@given(st.lists(st.one_of(st.none(), st.floats(0, 20)), max_size=60), st.floats(1, 30))
def test_whatever_comes_each_incident_is_told_once_and_calm_in_between(
    values: list[float | None], every_s: float
) -> None:
    """No flapping: from one change to the next at least the calm passes, and they take turns."""
    changes = told(a_board(), *((number * every_s, value) for number, value in enumerate(values)))
    kinds = [kind for _, kind in changes]
    assert kinds == ["fired", "cleared"] * (len(kinds) // 2) + ["fired"] * (len(kinds) % 2)
    for (fired_at, _), (cleared_at, _) in zip(changes[::2], changes[1::2], strict=False):
        assert cleared_at - fired_at >= LEVEL.calm_s


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=200))
def test_a_sliding_tally_is_what_came_lately(gaps: list[tuple[float, bool]]) -> None:
    """Compared with a list of all of it; a sixtieth more or less is its grain."""
    sliding, came, now = SlidingTally[bool](600), [], 0.0
    for gap_s, key in gaps:
        now += gap_s
        sliding.add(now, key)
        came.append((now, key))
        for either in (False, True):
            surely = [at for at, key in came if key is either and at > now - 590]
            perhaps = [at for at, key in came if key is either and at > now - 600]
            assert len(surely) <= sliding.counts(now)[either] <= len(perhaps)
    assert sliding.counts(now + 601).total() == 0


def test_a_sliding_tally_adds_up_amounts() -> None:
    sliding = SlidingTally[str](600)
    for number in range(19):
        sliding.add(number, "ms", 3)
    sliding.add(20, "ms", 23)
    assert sliding.counts(20) == {"ms": 80}


def test_every_rule_has_a_level_and_words_that_say_what_to_do() -> None:
    levels = AlertRules().levels()
    assert set(levels) == set(Rule)
    for rule, level in levels.items():
        assert level.clears_at <= level.fires_above
        said = words(Reading(rule, level.fires_above + 1, "simulated/x"), level.fires_above)
        assert said.endswith(".")
        assert "{" not in said
    assert words(Reading(Rule.DEAD_LETTERS, 10_004), 10).startswith("10,004 jobs became dead letters")


@pytest.mark.parametrize(
    "mistake",
    [
        {"dead_letters_per_hour": -1},
        {"retry_failure_rate": 1.5},
        {"duplicate_key_rate": "half"},
        {"job_delay_s": 0},
        {"rejected_rate": 2},
        {"error_rate": -0.1},
        {"server_error_rate": "often"},
        {"latency_p99_s": 0},
        {"loop_lag_s": 0},
        {"webhook": "ftp://example.org"},
    ],
)
def test_a_threshold_that_makes_no_sense_is_refused(mistake: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(mistake))):
        AlertRules(**mistake)  # type: ignore[arg-type]


def test_an_address_never_prints() -> None:
    assert "token" not in repr(AlertRules(webhook="https://hooks.example/token"))
