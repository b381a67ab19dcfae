"""One call at a time: latency, failures, scripts and answers of the simulated provider."""

import asyncio
import math
import statistics
from typing import Any

import msgspec
import pytest
from providers.simulated_stage import FakeClock, ask, failure_from, provider_with, send, story

from headgate.core.answer import Usage
from headgate.core.call import Call, Format
from headgate.core.errors import InvalidRequest, ProviderFailure
from headgate.core.failures import FailureKind
from headgate.core.ports.provider import ManyAtOnce, Provider
from headgate.providers.simulated import LatencyShape, Outcome, ScriptedOutcome


def test_it_is_a_provider() -> None:
    provider: Provider = provider_with()
    many: ManyAtOnce = provider_with()

    assert provider.formats == {Format.CHAT, Format.EMBEDDINGS}
    assert provider.reads
    assert many.max_calls == 1
    asyncio.run(provider.aclose())


# Latency


def test_a_fixed_latency_is_slept_once() -> None:
    clock = FakeClock()

    send(provider_with(clock=clock, latency_s=2.5))

    assert clock.sleeps == [2.5]


def test_without_latency_nothing_sleeps() -> None:
    """Benchmarks measure the gateway through this path: even a sleep of 0 costs a round of the loop."""
    clock = FakeClock()

    send(provider_with(clock=clock, latency_s=0, latency="exponential"))

    assert clock.sleeps == []


@pytest.mark.parametrize("shape", list(LatencyShape))
def test_every_shape_keeps_its_mean(shape: LatencyShape) -> None:
    """Capacity plans compare shapes; they would compare nothing if the means differed."""
    clock = FakeClock()
    story(provider_with(clock=clock, latency_s=2.0, latency=shape), 3000)

    assert statistics.fmean(clock.sleeps) == pytest.approx(2.0, rel=0.06)
    assert min(clock.sleeps) > 0


def test_a_uniform_latency_stays_within_its_spread() -> None:
    clock = FakeClock()
    story(provider_with(clock=clock, latency_s=2.0, latency="uniform", latency_spread=0.25), 500)

    assert 1.5 <= min(clock.sleeps) < 1.6
    assert 2.4 < max(clock.sleeps) <= 2.5


def test_a_wider_lognormal_has_a_longer_tail() -> None:
    def longest(spread: float) -> float:
        clock = FakeClock()
        story(provider_with(clock=clock, latency="lognormal", latency_spread=spread), 500)
        return max(clock.sleeps)

    assert longest(0.2) < longest(0.5) < longest(1.0)


def test_connecting_comes_before_the_latency() -> None:
    clock = FakeClock()

    send(provider_with(clock=clock, connect_latency_s=0.5, latency_s=2, connect_timeout_s=1))

    assert clock.sleeps == [0.5, 2]


@pytest.mark.parametrize("connect_latency_s", [1.5, math.inf])
def test_a_connection_that_takes_too_long_fails_exactly_at_the_timeout(connect_latency_s: float) -> None:
    clock = FakeClock()
    provider = provider_with(clock=clock, connect_latency_s=connect_latency_s, connect_timeout_s=1)

    failure = failure_from(provider)

    assert failure.kind is FailureKind.TRANSIENT
    assert failure.timed_out
    assert failure.status is None
    assert clock.sleeps == [1]


# Failures by chance


@pytest.mark.parametrize(
    "kind", ["throttled", "transient", "rejected", "misconfigured", "broken", "invalid_output"]
)
def test_each_kind_of_failure_comes_about_as_often_as_asked_for(kind: str) -> None:
    told = story(provider_with(failures={kind: 0.3}), 1000)

    assert told.count("blank" if kind == "invalid_output" else kind) == pytest.approx(300, abs=50)


def test_kinds_of_failure_share_one_draw() -> None:
    """Two kinds of 50 % leave no room for an answer."""
    told = story(provider_with(failures={"throttled": 0.5, "transient": 0.5}), 200)

    assert set(told) == {"throttled", "transient"}


def test_a_story_depends_on_the_seed_alone() -> None:
    mixed = {"throttled": 0.2, "transient": 0.2, "broken": 0.1}
    turned = dict(reversed(mixed.items()))

    first = story(provider_with(chance_seed=1, failures=mixed, latency="exponential"), 200)

    assert story(provider_with(chance_seed=1, failures=turned, latency="exponential"), 200) == first
    assert story(provider_with(chance_seed=2, failures=mixed, latency="exponential"), 200) != first


def test_failures_take_as_long_as_answers_unless_told_otherwise() -> None:
    same, quick = FakeClock(), FakeClock()

    failure_from(provider_with(clock=same, latency_s=2, outcome="transient"))
    failure_from(provider_with(clock=quick, latency_s=2, failure_latency_s=0.1, outcome="transient"))

    assert same.sleeps == [2]
    assert quick.sleeps == [0.1]


def test_a_throttled_call_names_the_wait_asked_for() -> None:
    failure = failure_from(provider_with(failures={"throttled": 1.0}, retry_after_s=1.5))

    assert (failure.kind, failure.status, failure.code, failure.retry_after_s) == (
        FailureKind.THROTTLED,
        429,
        "rate_limit_exceeded",
        1.5,
    )


def test_only_throttled_calls_name_a_wait_by_themselves() -> None:
    assert failure_from(provider_with(outcome=503, retry_after_s=1.5)).retry_after_s is None


def test_during_an_outage_every_call_fails_at_once() -> None:
    """Also the scripted ones: the outage stands in front of the model."""
    clock = FakeClock()
    provider = provider_with(
        clock=clock, latency_s=2, outage=[(10, 20)], script=["ok", {"content": "lost"}, {"content": "next"}]
    )

    send(provider)
    clock.time = 110
    failure = failure_from(provider)
    clock.time = 120
    after = send(provider)

    assert (failure.kind, failure.status) == (FailureKind.TRANSIENT, 503)
    assert clock.sleeps == [2, 2]
    assert after.content == "next"


def test_an_outage_takes_the_failure_latency() -> None:
    clock = FakeClock()

    failure_from(provider_with(clock=clock, failure_latency_s=0.2, outage=[(0, 20)]))

    assert clock.sleeps == [0.2]


# Scripts


@pytest.mark.parametrize(
    ("entry", "kind", "status", "code"),
    [
        ("throttled", FailureKind.THROTTLED, 429, "rate_limit_exceeded"),
        ("transient", FailureKind.TRANSIENT, 503, None),
        ("timeout", FailureKind.TRANSIENT, 504, None),
        ("rejected", FailureKind.REJECTED, 400, "invalid_request_error"),
        ("misconfigured", FailureKind.MISCONFIGURED, 401, "invalid_api_key"),
        ("cut", FailureKind.TRANSIENT, None, None),
        (429, FailureKind.THROTTLED, 429, "rate_limit_exceeded"),
        (529, FailureKind.THROTTLED, 529, None),
        (500, FailureKind.TRANSIENT, 500, None),
        (503, FailureKind.TRANSIENT, 503, None),
        (400, FailureKind.REJECTED, 400, "invalid_request_error"),
        (404, FailureKind.REJECTED, 404, None),
        (401, FailureKind.MISCONFIGURED, 401, "invalid_api_key"),
        ({"status": 404, "code": "model_not_found"}, FailureKind.MISCONFIGURED, 404, "model_not_found"),
        ({"outcome": "throttled", "code": "own"}, FailureKind.THROTTLED, 429, "own"),
        (ScriptedOutcome(status=403), FailureKind.MISCONFIGURED, 403, None),
    ],
)
def test_a_scripted_failure_looks_like_a_real_one(
    entry: Any, kind: FailureKind, status: int | None, code: str | None
) -> None:
    failure = failure_from(provider_with(script=[entry]))

    assert (failure.kind, failure.status, failure.code) == (kind, status, code)
    assert failure.timed_out is (entry == "timeout")
    assert failure.message.startswith("simulated: ")


def test_a_scripted_quota_error_is_the_operators() -> None:
    """A 429 that no waiting will mend: the real classification must run, not a table of our own."""
    entry = {"status": 429, "code": "insufficient_quota"}

    assert failure_from(provider_with(script=[entry], retry_after_s=1)).kind is FailureKind.MISCONFIGURED
    assert failure_from(provider_with(script=[entry], retry_after_s=1)).retry_after_s is None


def test_broken_is_an_exception_nobody_foresaw() -> None:
    with pytest.raises(RuntimeError, match="nobody foresaw"):
        send(provider_with(script=["broken"]))


def test_the_script_comes_first_and_the_other_options_after_it() -> None:
    provider = provider_with(script=["ok", 503, "blank", 200], failures={"rejected": 1.0})

    assert story(provider, 6) == ["ok", "transient", "blank", "ok", "rejected", "rejected"]


def test_the_usual_outcome_is_what_chance_leaves() -> None:
    told = story(provider_with(outcome="misconfigured", failures={"transient": 0.5}), 100)

    assert set(told) == {"misconfigured", "transient"}


def test_each_request_can_have_the_script_to_itself() -> None:
    """With many callers nobody knows whose call is the first; with this each one is retried once."""
    provider = provider_with(script=["throttled", "ok", "rejected"], script_by_request=True)

    def tell(request_id: str) -> str:
        try:
            send(provider, ask(id=request_id))
        except Exception as error:  # noqa: BLE001 - any failure is told the same way
            return type(error).__name__
        return "ok"

    assert [tell(request_id) for request_id in ("a", "b", "a", "b", "a", "a")] == [
        "ProviderFailure",
        "ProviderFailure",
        "ok",
        "ok",
        "ProviderFailure",
        "ok",
    ]


def test_a_scripted_latency_and_wait_beat_the_options() -> None:
    clock = FakeClock()
    entry = {"status": 503, "retry_after_s": 7, "latency_s": 3}
    options = {"latency_s": 2, "failure_latency_s": 1, "retry_after_s": 9}

    failure = failure_from(provider_with(clock=clock, script=[entry], **options))

    assert failure.retry_after_s == 7
    assert clock.sleeps == [3]


def test_a_scripted_answer_can_be_slow() -> None:
    clock = FakeClock()

    answer = send(provider_with(clock=clock, script=[{"latency_s": 30, "content": "at last"}]))

    assert answer.content == "at last"
    assert clock.sleeps == [30]


# Answers


def test_an_answer_names_its_question_and_its_usage() -> None:
    answer = send(provider_with(), ask("How high is the sky?"))

    assert answer.content is not None
    assert answer.content.startswith("simulated answer to: How high is the sky?")
    assert answer.finish_reason == "stop"
    assert answer.usage is not None
    assert not answer.usage.estimated
    assert answer.usage.input_tokens == 5
    assert answer.usage.output_tokens == math.ceil(len(answer.content) / 4)


def test_the_same_question_gets_the_same_answer_whatever_chance_does() -> None:
    assert send(provider_with(chance_seed=1)) == send(provider_with(chance_seed=2))


def test_another_seed_gives_other_answers() -> None:
    """Two upstreams of one model can be told apart by what they say."""
    assert send(provider_with()).content != send(provider_with(seed=1)).content


def test_long_questions_that_start_alike_get_different_answers() -> None:
    answers = [send(provider_with(), ask("long " * 100 + end)).content or "" for end in ("a", "b")]

    assert answers[0] != answers[1]
    assert all(len(answer) < 120 for answer in answers)


@pytest.mark.parametrize(
    ("messages", "question"),
    [
        ([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}], "one"),
        ([{"role": "user", "content": "one"}, {"role": "user", "content": "two"}], "two"),
        ([{"role": "system", "content": "alone"}], "alone"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}], "a"),
        ([{"role": "user", "content": None}], ""),
        ([{"role": "user", "content": "half a pair: \ud800, 東京"}], "half a pair: ?, 東京"),
    ],
)
def test_the_question_is_the_last_users_text(messages: list[dict[str, Any]], question: str) -> None:
    answer = send(provider_with(), Call(id="r", model="m", fields={"messages": messages}))

    assert (answer.content or "").startswith(f"simulated answer to: {question} [")


def test_canned_answers_by_question() -> None:
    provider = provider_with(answers={"ping": "pong"})

    assert send(provider, ask("ping")).content == "pong"
    assert send(provider, ask("ping")).content == "pong"
    assert send(provider, ask("pong")).content == send(provider_with(), ask("pong")).content


def test_canned_answers_by_pattern_quote_what_they_found() -> None:
    """An answer in a contract's shape needs no script of every question."""
    patterns = {r"(?i)name: (\w+)": r'{"hello": "\1"}', "name": "Who?"}
    provider = provider_with(answers={"name: Exact": "exact"}, answers_by_pattern=patterns)

    assert send(provider, ask("My NAME: Ann, please")).content == '{"hello": "Ann"}'
    assert send(provider, ask("a name?")).content == "Who?"
    assert send(provider, ask("name: Exact")).content == "exact"
    assert (send(provider, ask("neither")).content or "").startswith("simulated answer to: neither")


def test_canned_answers_in_order_then_the_default() -> None:
    """A failed call uses up no answer."""
    provider = provider_with(answers=["one", "two"], script=["ok", 503, "blank", "ok", "ok"])

    assert send(provider).content == "one"
    failure_from(provider)
    assert send(provider).blank
    assert send(provider).content == "two"
    assert send(provider).content == send(provider_with()).content


def test_canned_answers_go_out_in_the_order_of_the_calls() -> None:
    provider = provider_with(answers=["one", "two"], script=[{"latency_s": 9}, {"latency_s": 0}])

    async def both() -> list[str | None]:
        answers = await asyncio.gather(provider.send(ask(id="a")), provider.send(ask(id="b")))
        return [answer.content for answer in answers]

    assert asyncio.run(both()) == ["one", "two"]


def test_bad_outputs_are_bad_in_their_own_ways() -> None:
    provider = provider_with(script=["blank", "repeat", "bad_json"])

    blank, repeat, bad_json = (send(provider) for _ in range(3))

    assert blank.blank
    assert (repeat.content or "").count("This sentence says the same thing again.") == 50
    assert repeat.finish_reason == "length"
    assert (bad_json.content or "").startswith('{"label": ')
    assert not (bad_json.content or "").endswith("}")


def test_usage_can_be_fixed_or_left_out() -> None:
    fixed = send(provider_with(output_tokens=1234)).usage

    assert fixed is not None
    assert fixed.output_tokens == 1234
    estimated = send(provider_with(report_usage=False)).usage
    assert estimated is not None
    assert estimated.estimated


def test_the_same_chat_costs_the_same_however_it_came() -> None:
    """Over HTTP a call has bytes, in the library it has none; the provider counts what is said."""
    messages = [
        {"role": "system", "content": "東京" * 10},
        {"role": "user", "content": [{"type": "text", "text": "x" * 19}, {"type": "image_url"}]},
    ]
    body = msgspec.json.encode(messages)
    came = Call(id="r", model="m", fields={"messages": msgspec.Raw(body)}, size_bytes=len(body))
    given = Call(id="r", model="m", fields={"messages": messages})

    usages = [send(provider_with(output_tokens=3), call).usage for call in (came, given)]

    assert usages == [Usage(10, 3)] * 2


def test_an_answer_is_a_body_in_openai_s_format() -> None:
    call = Call(
        id="r1",
        model="public",
        fields={"messages": [{"role": "user", "content": "hi"}]},
        created=1700000000.5,
    )

    answer = send(provider_with(answers={"hi": "hello"}), call)

    assert answer.json() == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "public",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }


def test_a_call_that_cannot_be_read_never_reached_the_provider() -> None:
    provider = provider_with()

    with pytest.raises(InvalidRequest, match="messages"):
        send(provider, Call(id="r", model="m", fields={"messages": []}))

    assert provider.calls == 0


@pytest.mark.parametrize("word", sorted(set(Outcome) - {Outcome.OK, Outcome.STALL}))
def test_no_word_of_a_script_falls_through_to_a_good_answer(word: str) -> None:
    good = send(provider_with())

    try:
        assert send(provider_with(script=[word])) != good
    except (ProviderFailure, RuntimeError) as error:
        assert "simulated" in str(error)  # noqa: PT017 - both a bad answer and a failure will do
