"""Options, scripts and behaviours by name: what is accepted, and what every mistake is told."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from providers.simulated_stage import (
    FakeClock,
    ask,
    cancel,
    failure_from,
    provider_named,
    read,
    send,
    story,
)

from headgate.core.errors import UnknownModel
from headgate.core.failures import FailureKind
from headgate.core.problems import InvalidSettings
from headgate.providers.simulated import (
    BEHAVIOURS,
    Outcome,
    ScriptedOutcome,
    SimulatedOptions,
    options_for,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "simulated.md"


def problems_of(options: Mapping[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidSettings) as caught:
        SimulatedOptions(**options)
    return {problem.path: problem.message for problem in caught.value.problems}


# Options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("latency_s", -1),
        ("latency_s", math.inf),
        ("latency", "gaussian"),
        ("latency_spread", -0.1),
        ("connect_latency_s", -1),
        ("connect_latency_s", math.nan),
        ("failures", ["transient"]),
        ("failure_latency_s", -1),
        ("retry_after_s", "soon"),
        ("outage", 5),
        ("outage", "ab"),
        ("script", "ok"),
        ("script", 503),
        ("script_by_request", "yes"),
        ("chunks", 0),
        ("first_token_s", -1),
        ("chunk_gap_s", -1),
        ("cut_after_chunks", 1.5),
        ("answers", "yes"),
        ("answers", 5),
        ("answers", ["yes", 1]),
        ("answers", {"ask": None}),
        ("answers_by_pattern", ["yes"]),
        ("answers_by_pattern", {"(": "yes"}),
        ("answers_by_pattern", {"no group": r"\1"}),
        ("seed", -1),
        ("output_tokens", -1),
        ("report_usage", 1),
        ("many_inputs", 0),
        ("shuffle_many", None),
        ("fail_whole", "no"),
    ],
)
def test_a_wrong_value_is_told_by_name(name: str, value: object) -> None:
    assert list(problems_of({name: value})) == [name]


@pytest.mark.parametrize(
    ("options", "path", "message"),
    [
        ({"failures": {"transiet": 0.1}}, "failures.transiet", "did you mean 'transient'?"),
        ({"failures": {"cancelled": 0.1}}, "failures.cancelled", "known: throttled, transient"),
        ({"failures": {"transient": 2}}, "failures.transient", "at most 1"),
        ({"failures": {"transient": 0.7, "broken": 0.4}}, "failures", "add up to at most 1, not 1.1"),
        ({"latency": "uniform", "latency_spread": 1.5}, "latency_spread", "at most 1"),
        ({"outage": [(5, 9), (4, 4)]}, "outage[1]", "end after its start"),
        ({"outage": [[1, 2, 3]]}, "outage[0]", "pair of seconds"),
        ({"outage": [("a", 3)]}, "outage[0]", "must be a number"),
        ({"outcome": "okay"}, "outcome", "must be one of ok, throttled"),
        ({"script": ["ok", "throtled"]}, "script[1]", "did you mean 'throttled'?"),
        ({"script": [302]}, "script[0]", "200–299 or 400–599"),
        ({"script": [{"outcome": "blanc"}]}, "script[0].outcome", "did you mean 'blank'?"),
        ({"script": [True]}, "script[0]", "a word, an HTTP status or a mapping"),
        ({"script": [None]}, "script[0]", "a word, an HTTP status or a mapping"),
        ({"script": [{"status": "503"}]}, "script[0].status", "whole number"),
        ({"script": [{"stat": 503}]}, "script[0].stat", "did you mean 'status'?"),
        ({"script": [{"status": 503, "outcome": "blank"}]}, "script[0].status", "not both"),
        ({"script": [{"latency_s": -1}]}, "script[0].latency_s", "at least 0"),
        ({"script": [{"retry_after_s": 3}]}, "script[0].retry_after_s", "error status only"),
        ({"script": [{"outcome": "cut", "code": "x"}]}, "script[0].code", "error status only"),
        ({"script": [{"status": 500, "code": 7}]}, "script[0].code", "must be text"),
        ({"script": [{"status": 500, "content": "x"}]}, "script[0].content", "an answer only"),
        ({"script": [{"outcome": "blank", "content": "x"}]}, "script[0].content", "an answer only"),
    ],
)
def test_a_mistake_inside_is_told_with_its_place(options: dict[str, Any], path: str, message: str) -> None:
    assert message in problems_of(options)[path]


def test_all_mistakes_are_told_together() -> None:
    told = problems_of({"latency_s": -1, "chunks": 0, "script": ["maybe", 999], "outcome": {"x": 1}})

    assert set(told) == {"latency_s", "chunks", "script[0]", "script[1]", "outcome.x"}


def test_shares_that_add_up_to_one_are_accepted() -> None:
    """0.1 + 0.2 + 0.7 is not 1 in floating point; nobody should have to know."""
    SimulatedOptions(failures={"throttled": 0.1, "transient": 0.2, "broken": 0.7})


def test_an_outcome_of_ones_own_is_checked_alike() -> None:
    with pytest.raises(InvalidSettings, match="status"):
        ScriptedOutcome(status=99)


# Behaviours


def test_each_name_has_a_test_below() -> None:
    assert set(BEHAVIOURS) == {
        *("", "simulated", "instant", "slow", "flaky", "throttled", "down", "unreachable", "misconfigured"),
        *("rejecting", "broken", "blank", "repeating", "bad-json", "cut", "stalled", "many"),
    }


@pytest.mark.parametrize("name", ["simulated", "simulated/", "simulated/simulated", ""])
def test_the_plain_one_answers(name: str) -> None:
    assert story(provider_named(name), 50) == ["ok"] * 50


@pytest.mark.parametrize(("name", "slept"), [("simulated", [0.05]), ("instant", []), ("slow", [5])])
def test_how_long_behaviours_take(name: str, slept: list[float]) -> None:
    clock = FakeClock()

    send(provider_named(f"simulated/{name}", clock=clock))

    assert clock.sleeps == slept


@pytest.mark.parametrize(
    ("name", "kind", "count"), [("flaky", "transient", 200), ("throttled", "throttled", 300)]
)
def test_some_behaviours_fail_now_and_then(name: str, kind: str, count: int) -> None:
    told = story(provider_named(f"simulated/{name}"), 1000)

    assert set(told) == {"ok", kind}
    assert told.count(kind) == pytest.approx(count, abs=50)


def test_the_throttled_one_asks_for_a_second() -> None:
    provider = provider_named("simulated/throttled", failures={"throttled": 1.0})

    assert failure_from(provider).retry_after_s == 1


@pytest.mark.parametrize(
    ("name", "kind", "status"),
    [
        ("down", FailureKind.TRANSIENT, 503),
        ("unreachable", FailureKind.TRANSIENT, None),
        ("misconfigured", FailureKind.MISCONFIGURED, 401),
        ("rejecting", FailureKind.REJECTED, 400),
        ("cut", FailureKind.TRANSIENT, None),
    ],
)
def test_some_behaviours_always_fail(name: str, kind: FailureKind, status: int | None) -> None:
    provider = provider_named(f"simulated/{name}")

    for _ in range(20):
        failure = failure_from(provider)
        assert (failure.kind, failure.status) == (kind, status)
        assert failure.timed_out is (name == "unreachable")


def test_the_broken_one_raises() -> None:
    assert story(provider_named("simulated/broken"), 3) == ["broken"] * 3


@pytest.mark.parametrize(
    ("name", "start"), [("blank", ""), ("repeating", "This sentence says"), ("bad-json", '{"label": ')]
)
def test_some_behaviours_answer_badly(name: str, start: str) -> None:
    content = send(provider_named(f"simulated/{name}")).content

    assert content is not None
    assert content.startswith(start)
    assert bool(content) is (name != "blank")


def test_the_stalled_one_never_answers() -> None:
    provider = provider_named("simulated/stalled")

    async def main() -> None:
        await cancel(asyncio.create_task(read(provider, ask())))

    asyncio.run(main())

    assert provider.cancelled == 1


def test_the_many_one_takes_sixteen() -> None:
    assert provider_named("simulated/many").max_calls == 16


def test_a_behaviour_can_be_adjusted() -> None:
    options = options_for("simulated/slow", {"chunks": 2, "latency": "exponential"})

    assert (options.latency_s, options.chunks, options.latency) == (5, 2, "exponential")


def test_a_behaviour_may_be_named_without_its_prefix() -> None:
    assert options_for("slow", {}) == BEHAVIOURS["slow"]


def test_an_unknown_behaviour_is_told_which_there_are() -> None:
    with pytest.raises(UnknownModel) as caught:
        options_for("simulated/flakey", {})

    assert caught.value.param == "model"
    for name in set(BEHAVIOURS) - {"", "simulated"}:
        assert f"simulated/{name}" in str(caught.value)
    assert str(caught.value).endswith("did you mean 'flaky'?")


def test_a_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(UnknownModel) as caught:
        options_for("simulated/zzzzzz", {})

    assert "did you mean" not in str(caught.value)


def test_unknown_options_are_told_together() -> None:
    with pytest.raises(InvalidSettings) as caught:
        options_for("simulated", {"latency_ms": 5, "chunk": 1, "chunks": 3})

    assert {problem.path: problem.message for problem in caught.value.problems} == {
        "latency_ms": "is no option of a simulated provider; did you mean 'latency_s'?",
        "chunk": "is no option of a simulated provider; did you mean 'chunks'?",
    }


# The page


def test_the_page_names_every_option_word_and_behaviour() -> None:
    """Options that cannot be found are options that do not exist."""
    page = PAGE.read_text(encoding="utf-8")
    names = [
        *(f"| `{field.name}` |" for field in fields(SimulatedOptions)),
        *(f"| `{word}` |" for word in Outcome),
        *(f"`{field.name}`" for field in fields(ScriptedOutcome)),
        *(f"| `simulated/{name}` |" for name in BEHAVIOURS if name not in {"", "simulated"}),
    ]

    assert [name for name in names if name not in page] == []


def test_the_pages_example_runs() -> None:
    example = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]

    exec(compile(example, str(PAGE), "exec"), {"clock": FakeClock()})
