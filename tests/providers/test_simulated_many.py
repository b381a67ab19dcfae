"""Calls that carry many requests: each item has its own fate and finds its own asker."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from providers.simulated_stage import FakeClock, ask, cancel, provider_with, send

from headgate.core.answer import Answer
from headgate.core.call import Call
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.ports.provider import ManyAtOnce

QUESTIONS = [ask(f"question {number}", id=f"r{number}") for number in range(8)]


def ask_many(provider: ManyAtOnce, calls: Sequence[Call] = QUESTIONS) -> Mapping[str, Answer | Failure]:
    items = asyncio.run(provider.send_many(calls))
    assert len(items) == len(calls)
    return {item.request_id: item.outcome for item in items}


def test_every_item_gets_the_answer_to_its_own_question() -> None:
    outcomes = ask_many(provider_with(many_inputs=8))

    for call in QUESTIONS:
        assert outcomes[call.id] == send(provider_with(), call)


def test_answers_come_back_in_any_order_but_the_same_for_a_seed() -> None:
    """Whoever pairs answers with requests by position must fail here."""
    asked = [call.id for call in QUESTIONS]

    def order(seed: int) -> list[str]:
        provider = provider_with(chance_seed=seed, many_inputs=8)
        return [item.request_id for item in asyncio.run(provider.send_many(QUESTIONS))]

    assert order(1) != asked
    assert sorted(order(1)) == asked
    assert order(1) == order(1)
    assert order(1) != order(2)


def test_answers_can_be_kept_in_order() -> None:
    provider = provider_with(many_inputs=8, shuffle_many=False)

    items = asyncio.run(provider.send_many(QUESTIONS))

    assert [item.request_id for item in items] == [call.id for call in QUESTIONS]


def test_a_failing_item_fails_alone() -> None:
    """One bad item must not cost its neighbours their answers."""
    script = ["ok", 429, "ok", "broken", "blank", "cut", 400]
    outcomes = ask_many(provider_with(many_inputs=8, script=script, retry_after_s=2))

    failures = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Failure)}
    assert {key: failure.kind for key, failure in failures.items()} == {
        "r1": FailureKind.THROTTLED,
        "r3": FailureKind.BROKEN,
        "r5": FailureKind.TRANSIENT,
        "r6": FailureKind.REJECTED,
    }
    assert failures["r1"].retry_after_s == 2
    blank = outcomes["r4"]
    assert isinstance(blank, Answer)
    assert blank.blank


def test_chance_hits_items_not_calls() -> None:
    provider = provider_with(many_inputs=8, failures={"transient": 0.5})

    failed = [sum(isinstance(outcome, Failure) for outcome in ask_many(provider).values()) for _ in range(50)]

    assert sum(failed) == pytest.approx(200, abs=40)
    assert any(0 < count < 8 for count in failed)


def test_each_item_goes_through_its_own_script() -> None:
    provider = provider_with(many_inputs=8, script=[503, "ok"], script_by_request=True)

    assert all(isinstance(outcome, Failure) for outcome in ask_many(provider).values())
    assert all(isinstance(outcome, Answer) for outcome in ask_many(provider).values())


def test_canned_answers_follow_the_order_of_the_requests() -> None:
    outcomes = ask_many(provider_with(many_inputs=8, answers=[str(number) for number in range(8)]))

    contents = {key: outcome.content for key, outcome in outcomes.items() if isinstance(outcome, Answer)}
    assert contents == {f"r{number}": str(number) for number in range(8)}


def test_a_call_takes_as_long_as_its_slowest_item() -> None:
    clock = FakeClock()
    script = [{"latency_s": 1}, {"latency_s": 3}, {"latency_s": 2}]

    ask_many(provider_with(clock=clock, many_inputs=8, latency_s=0, script=script))

    assert clock.sleeps == [3]


@pytest.mark.parametrize("entry", [503, "cut"])
def test_one_failing_item_can_fail_the_whole_call(entry: int | str) -> None:
    provider = provider_with(many_inputs=8, fail_whole=True, script=["ok", "ok", entry])

    with pytest.raises(ProviderFailure) as caught:
        ask_many(provider)

    assert caught.value.failure.kind is FailureKind.TRANSIENT
    assert provider.in_flight == 0


def test_a_call_without_failing_items_is_whole() -> None:
    provider = provider_with(many_inputs=8, fail_whole=True)

    assert all(isinstance(outcome, Answer) for outcome in ask_many(provider).values())


@pytest.mark.parametrize("options", [{"outage": [(0, 5)]}, {"connect_latency_s": 9}])
def test_who_cannot_be_reached_fails_the_whole_call(options: dict[str, Any]) -> None:
    with pytest.raises(ProviderFailure) as caught:
        ask_many(provider_with(many_inputs=8, connect_timeout_s=1, **options))

    assert caught.value.failure.kind is FailureKind.TRANSIENT


def test_a_stalled_item_holds_the_call() -> None:
    provider = provider_with(many_inputs=8, script=["ok", "stall"])

    async def call() -> None:
        await provider.send_many(QUESTIONS)

    async def main() -> None:
        await cancel(asyncio.create_task(call()))

    asyncio.run(main())

    assert (provider.cancelled, provider.in_flight) == (1, 0)


def test_more_items_than_fit_are_rejected() -> None:
    provider = provider_with(many_inputs=4)

    with pytest.raises(ProviderFailure) as caught:
        ask_many(provider)

    assert caught.value.failure.kind is FailureKind.REJECTED


def test_no_items_get_no_answers() -> None:
    assert ask_many(provider_with(many_inputs=4), []) == {}
