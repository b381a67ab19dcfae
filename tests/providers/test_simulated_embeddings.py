"""Vectors of the simulated provider: repeatable, told apart, and as unlucky as any other call."""

import asyncio
import math
from typing import Any

import msgspec
import pytest
from attacks.loop_time import MAX_CALLBACK_S, callback_times
from providers import simulated_stage
from providers.asking import an_embedding_call
from providers.simulated_stage import FakeClock, cancel, provider_named, provider_with

from headgate.core.answer import Answer, Usage
from headgate.core.call import MAX_TEXTS, Call
from headgate.core.failures import Failure, FailureKind
from headgate.core.ports.provider import Provider
from headgate.providers.simulated.vectors import MAX_NUMBERS


def texts(*given: str, id: str = "r1", **params: Any) -> Call:  # noqa: A002 - it is the call's field
    return msgspec.structs.replace(an_embedding_call(*given or ("hello",), **params), id=id)


def embed(provider: Provider, call: Call | None = None) -> Answer:
    return simulated_stage.send(provider, call or texts())


def failure_from(provider: Provider, call: Call | None = None) -> Failure:
    return simulated_stage.failure_from(provider, call or texts())


# ---- Vectors --------------------------------------------------------------------------------------------------


def test_the_same_text_has_the_same_vector_wherever_it_stands() -> None:
    """Callers store vectors and compare them later: another call, another process must not change them."""
    first = embed(provider_with(), texts("a", "b")).vectors
    again = embed(provider_with(chance_seed=8), texts("b", "c", "a", id="other")).vectors

    assert first[0] == again[2]
    assert first[1] == again[0]
    assert first[0][:3] == pytest.approx([0.230861, 0.139105, -0.200953], abs=1e-6), "as in every release"
    assert len({tuple(vector) for vector in (*first, *again)}) == 3


def test_another_seed_gives_other_vectors() -> None:
    assert embed(provider_with(seed=1)).vectors != embed(provider_with(seed=2)).vectors


def test_a_seed_and_a_text_are_not_mistaken_for_another_pair() -> None:
    assert (
        embed(provider_with(seed=1), texts("2:x")).vectors
        != embed(provider_with(seed=12), texts("x")).vectors
    )


@pytest.mark.parametrize("dimensions", [1, 2, 16, 1536, 4096])
def test_vectors_are_as_long_as_asked_for_and_of_length_one(dimensions: int) -> None:
    vectors = embed(provider_with(), texts("a", "東京", "\ud800", dimensions=dimensions)).vectors

    assert [len(vector) for vector in vectors] == [dimensions] * 3
    assert all(math.hypot(*vector) == pytest.approx(1.0) for vector in vectors)


@pytest.mark.parametrize("params", [{}, {"dimensions": None}])
def test_unasked_they_have_sixteen_dimensions(params: dict[str, Any]) -> None:
    assert len(embed(provider_with(), texts(**params)).vectors[0]) == 16


@pytest.mark.parametrize("dimensions", [0, -1, 4097, 10**12, 2.0, "16", True, math.nan])
def test_dimensions_that_make_no_sense_are_rejected_as_by_a_real_provider(dimensions: Any) -> None:
    provider = provider_with()

    failure = failure_from(provider, texts(dimensions=dimensions))

    assert (failure.kind, failure.status) == (FailureKind.REJECTED, 400)
    assert "dimensions" in failure.message
    assert (provider.calls, provider.in_flight) == (1, 0)


def test_input_tokens_are_counted_and_nothing_comes_out() -> None:
    """`output_tokens` is about answers with text."""
    assert embed(provider_with(output_tokens=99), texts("x" * 8, "x")).usage == Usage(3, 0)
    assert embed(provider_with(report_usage=False), texts("x" * 8, "x")).usage == Usage(3, 0, estimated=True)


def test_an_answer_is_a_body_in_openai_s_format() -> None:
    answer = embed(provider_with(), texts("a", "b", dimensions=1))

    assert answer.json() == {
        "object": "list",
        "model": "public",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [1.0]},
            {"object": "embedding", "index": 1, "embedding": [1.0]},
        ],
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }


def test_texts_that_came_as_json_have_the_same_vectors() -> None:
    fields = {"input": msgspec.Raw(b'["a","b"]'), "dimensions": msgspec.Raw(b"2")}
    came = msgspec.structs.replace(texts(), fields=fields, size_bytes=10)

    assert embed(provider_with(), came).body == embed(provider_with(), texts("a", "b", dimensions=2)).body


def test_as_many_numbers_as_can_be_asked_for_keep_no_other_call_waiting() -> None:
    call = texts(*["x"] * MAX_TEXTS, dimensions=MAX_NUMBERS // MAX_TEXTS)

    async def main() -> Answer:
        return await asyncio.create_task(provider_with(latency_s=0).send(call))

    with callback_times() as seconds:
        answer = asyncio.run(main())

    assert len(answer.vectors) == MAX_TEXTS
    assert max(seconds) < MAX_CALLBACK_S / 2


# ---- Fates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (429, FailureKind.THROTTLED),
        (503, FailureKind.TRANSIENT),
        ("cut", FailureKind.TRANSIENT),
        (400, FailureKind.REJECTED),
        (401, FailureKind.MISCONFIGURED),
    ],
)
def test_a_scripted_failure_fails_an_embedding_too(entry: Any, kind: FailureKind) -> None:
    provider = provider_with(script=[entry])

    assert failure_from(provider).kind is kind
    assert len(embed(provider).vectors) == 1


def test_a_broken_one_raises_what_nobody_foresaw() -> None:
    with pytest.raises(RuntimeError, match="simulated"):
        embed(provider_named("simulated/broken"))


@pytest.mark.parametrize(
    ("outcome", "lengths"),
    [("ok", [16, 16]), ("blank", [0, 0]), ("repeat", [16, 16, 16]), ("bad_json", [16])],
)
def test_a_bad_answer_has_too_much_too_little_or_nothing_in_it(outcome: str, lengths: list[int]) -> None:
    vectors = embed(provider_with(outcome=outcome), texts("a", "b")).vectors

    assert [len(vector) for vector in vectors] == lengths


def test_latency_outage_and_connect_timeout_hold_for_embeddings() -> None:
    clock = FakeClock()
    provider = provider_with(clock=clock, latency_s=2.5, outage=[(2, 5)])
    embed(provider)

    assert clock.sleeps == [2.5]
    assert failure_from(provider).status == 503
    assert failure_from(provider_with(connect_latency_s=9, connect_timeout_s=1)).timed_out


def test_embeddings_and_answers_share_one_script_and_one_count() -> None:
    provider = provider_with(script=["ok", 503])

    embed(provider, texts("a", "b", "c", id="a"))
    failure_from(provider, texts(id="a"))

    assert provider.calls == 2, "a call is one, however many texts it carries"
    assert provider.requests_seen == {"a": 2}
    assert (provider.in_flight, provider.most_in_flight, provider.cancelled) == (0, 1, 0)
    assert list(provider.starts) == pytest.approx([100.0, 100.05])


def test_a_stalled_embedding_hangs_until_it_is_cancelled() -> None:
    provider = provider_named("simulated/stalled")

    async def main() -> None:
        await cancel(asyncio.create_task(provider.send(texts())))

    asyncio.run(main())

    assert (provider.calls, provider.cancelled, provider.in_flight) == (1, 1, 0)
