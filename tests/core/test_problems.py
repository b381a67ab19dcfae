"""Mistakes in settings: found early, named by path, all of them at once."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.errors import HeadgateError, SettingsError
from headgate.core.gate_rules import GateRules, Order
from headgate.core.problems import InvalidSettings, Problem, Review
from headgate.core.ticket import Ticket
from headgate.core.timeouts import Timeouts
from headgate.core.turns import Turns


def review(value: Any, **bounds: Any) -> list[str]:
    found = Review()
    found.number("field", value, **bounds)
    return [problem.message for problem in found.problems]


def paths(refused: pytest.ExceptionInfo[InvalidSettings]) -> list[str]:
    return [problem.path for problem in refused.value.problems]


# ---- One number -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (-1, {}, "must be at least 0, not -1"),
        (0.5, {"least": 1}, "must be at least 1, not 0.5"),
        (11, {"most": 10}, "must be at most 10, not 11"),
        (0, {"above": 0}, "must be more than 0, not 0"),
        (2.0, {"whole": True}, "must be a whole number, not 2.0"),
        (True, {}, "must be a number, not True"),
        (True, {"whole": True}, "must be a whole number, not True"),
        ("3", {}, "must be a number, not '3'"),
        ([], {}, "must be a number, not []"),
        (math.nan, {}, "must be a finite number, not nan"),
        (math.inf, {}, "must be a finite number, not inf"),
        (-math.inf, {}, "must be a finite number, not -inf"),
    ],
)
def test_a_wrong_number_is_told_what_would_be_right(value: Any, bounds: dict[str, Any], message: str) -> None:
    assert review(value, **bounds) == [message]


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        (None, {"least": 1, "whole": True}),
        (0, {}),
        (1, {"least": 1, "most": 1}),
        (0.1, {"above": 0}),
        (3, {"whole": True}),
        (3, {}),
        (1e300, {}),
    ],
)
def test_a_right_number_passes(value: Any, bounds: dict[str, Any]) -> None:
    assert review(value, **bounds) == []


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["huge", "hugely negative"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_number_too_large_for_a_float_is_a_mistake_like_any_other(value: int, whole: bool) -> None:
    """YAML reads integers of any length; a crash would hide all other mistakes."""
    assert len(review(value, whole=whole, most=100_000)) == 1


@given(
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
@settings(deadline=None, max_examples=200)
def test_one_value_is_one_mistake_at_most(value: Any) -> None:
    assert len(review(value, least=1, most=5, above=0, whole=True)) <= 1


# ---- All at once --------------------------------------------------------------------------------------------------


def test_nothing_wrong_is_not_refused() -> None:
    Review().refuse()


def test_all_mistakes_stand_in_one_message() -> None:
    found = Review()
    found.number("slots", 0, least=1)
    found.add("model", "is missing")

    with pytest.raises(InvalidSettings) as refused:
        found.refuse()

    assert str(refused.value) == (
        "2 mistakes in the settings:\n  slots: must be at least 1, not 0\n  model: is missing"
    )


def test_one_mistake_is_not_called_mistakes() -> None:
    assert str(InvalidSettings([Problem("slots", "is missing")])).startswith("1 mistake in the settings:")


def test_invalid_settings_are_caught_as_what_they_are() -> None:
    error = InvalidSettings(iter([Problem("slots", "is missing")]))

    assert isinstance(error, SettingsError)
    assert isinstance(error, HeadgateError)
    assert isinstance(error, ValueError)
    assert error.code == "invalid_settings"
    assert len(error.problems) == 1


@pytest.mark.parametrize(
    ("prefix", "path", "joined"),
    [
        ("models.summary", "slots", "models.summary.slots"),
        ("upstreams[0]", "slots", "upstreams[0].slots"),
        ("models", "", "models"),
        ("", "slots", "slots"),
        ("", "", ""),
    ],
)
def test_a_mistake_is_named_from_the_root(prefix: str, path: str, joined: str) -> None:
    assert Problem(path, "is missing").under(prefix) == Problem(joined, "is missing")


def test_a_mistake_without_a_path_is_only_its_message() -> None:
    assert str(Problem("", "the file is empty")) == "the file is empty"


# ---- The records that use it -----------------------------------------------------------------------------------------


def test_all_mistakes_of_gate_rules_are_told_at_once() -> None:
    with pytest.raises(InvalidSettings) as refused:
        GateRules(
            slots=0,
            reserved_slots=-1,
            depth=1.5,  # type: ignore[arg-type]
            promote_after_s=math.nan,
            hold_wait_s=math.inf,
            longest_pause_s=0,
        )

    assert paths(refused) == [
        "slots",
        "reserved_slots",
        "depth",
        "promote_after_s",
        "hold_wait_s",
        "longest_pause_s",
    ]


@pytest.mark.parametrize(
    ("slots", "reserved", "fine"), [(4, 4, True), (4, 5, False), (1, 0, True), (1, 2, False)]
)
def test_no_more_slots_can_be_reserved_than_there_are(slots: int, reserved: int, fine: bool) -> None:
    if fine:
        GateRules(slots=slots, reserved_slots=reserved)
        return
    with pytest.raises(InvalidSettings) as refused:
        GateRules(slots=slots, reserved_slots=reserved)
    assert paths(refused) == ["reserved_slots"]


def test_too_many_reserved_slots_are_told_beside_another_mistake() -> None:
    """Otherwise the operator mends one mistake only to be shown the next."""
    with pytest.raises(InvalidSettings) as refused:
        GateRules(slots=2, reserved_slots=5, depth=-1)

    assert set(paths(refused)) == {"reserved_slots", "depth"}


def test_an_order_given_by_its_name_is_obeyed_or_refused() -> None:
    """A setting that is accepted and then ignored is worse than none."""
    try:
        rules = GateRules(interactive_order="lifo")  # type: ignore[arg-type]
    except InvalidSettings:
        return
    line = Turns(rules).interactive
    for since in (1.0, 2.0):
        line.join(Ticket(since=since))
    head = line.head()
    assert head is not None
    assert head.since == 2.0


def test_an_order_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="interactive_order"):
        GateRules(interactive_order="oldest")  # type: ignore[arg-type]


@pytest.mark.parametrize("order", Order)
def test_the_orders_that_exist_are_fine(order: Order) -> None:
    assert GateRules(interactive_order=order).interactive_order is order


@pytest.mark.parametrize("bad", [0, -1, math.nan, math.inf, "5", True])
@pytest.mark.parametrize("field", ["connect_s", "first_token_s", "idle_s", "total_s"])
def test_a_timeout_that_makes_no_sense_is_refused_by_name(field: str, bad: Any) -> None:
    with pytest.raises(InvalidSettings) as refused:
        Timeouts(**{field: bad})

    assert paths(refused) == [field]


def test_all_mistakes_of_timeouts_are_told_at_once() -> None:
    with pytest.raises(InvalidSettings) as refused:
        Timeouts(connect_s=0, first_token_s=-1, idle_s=math.nan, total_s=math.inf)

    assert paths(refused) == ["connect_s", "first_token_s", "idle_s", "total_s"]


def test_the_default_timeouts_are_the_documented_ones() -> None:
    assert Timeouts() == Timeouts(connect_s=5, first_token_s=None, idle_s=30, total_s=300)
    assert Timeouts().stream_first_token_s == 60
