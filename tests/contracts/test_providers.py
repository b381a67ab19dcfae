"""What every provider does alike, whatever its wire format. Each is a `Troupe` in the table below."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

import pytest
from contracts.provider_stage import (
    CACHED_TOKENS,
    KEY,
    QUESTION,
    RETRY_AFTER_S,
    SAID,
    TEXTS,
    THOUGHT,
    TOOL_CALL,
    VECTORS,
    Extra,
    Part,
    Scene,
    Troupe,
    read,
    scene,
)
from providers.asking import a_call, an_embedding_call, chunks_of
from providers.stubs import anthropic, bedrock, ollama, openai, simulated

from headgate.core.answer import Chunk
from headgate.core.call import Call, Format
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.formats.sse import FirstContent
from headgate.transport import Transport

PROVIDERS: Final[Mapping[str, Troupe]] = {
    "anthropic": anthropic.TROUPE,
    "bedrock": bedrock.TROUPE,
    "ollama": ollama.TROUPE,
    "openai": openai.TROUPE,
    "simulated": simulated.TROUPE,
}

Play = Callable[[Scene], Awaitable[None]]


def on(*parts: Part) -> pytest.MarkDecorator:
    """Every provider in each of these parts that its format knows."""
    cases = [
        pytest.param(troupe, part, id=f"{name}-{part.name.lower()}")
        for name, troupe in PROVIDERS.items()
        for part in parts
        if troupe.plays(part)
    ]
    return pytest.mark.parametrize(("troupe", "part"), cases)


def play(troupe: Troupe, part: Part, act: Play) -> None:
    async def run() -> None:
        async with asyncio.timeout(15), scene(troupe, part) as set_up:
            await act(set_up)

    asyncio.run(run())


async def failure_of(attempt: Awaitable[object]) -> Failure:
    with pytest.raises(ProviderFailure) as caught:
        await attempt
    return caught.value.failure


def asked(*, stream: bool = False) -> Call:
    return a_call(QUESTION, stream=stream)


async def streamed(found: Scene) -> list[Chunk]:
    chunks: list[Chunk] = []
    await read(chunks_of(found.provider, asked(stream=True)), chunks)
    return chunks


async def until(happened: Callable[[], int]) -> None:
    """Within a second."""
    async with asyncio.timeout(1):
        while not happened():  # noqa: ASYNC110 - stubs only count
            await asyncio.sleep(0.01)


async def hung_up(found: Scene) -> None:
    await until(lambda: found.stub.hang_ups)


async def arrived(found: Scene) -> None:
    await until(lambda: found.stub.calls)


@on(Part.ANSWER)
def test_a_whole_answer_comes_with_its_text_its_end_and_its_price(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        answer = await found.provider.send(asked())

        assert answer.content == SAID
        assert answer.finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.input_tokens > 0
        assert answer.usage.output_tokens > 0
        assert not answer.usage.estimated

    play(troupe, part, act)


@on(Part.ANSWER, Part.EMBEDDINGS)
def test_a_provider_declares_its_formats_and_whether_it_reads_requests(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        provider = found.provider

        assert (Format.EMBEDDINGS if part is Part.EMBEDDINGS else Format.CHAT) in provider.formats
        assert provider.formats <= frozenset(Format)
        assert isinstance(provider.reads, bool)

    play(troupe, part, act)


KEPT: Final[Mapping[Extra, Callable[[Any], bool]]] = {
    Extra.CHOICES: lambda body: [choice["message"]["content"] for choice in body["choices"]] == [SAID] * 2,
    Extra.LOGPROBS: lambda body: bool(body["choices"][0].get("logprobs")),
    Extra.TOOL_CALLS: lambda body: _functions(body) == [TOOL_CALL["function"]],
    Extra.REASONING: lambda body: body["choices"][0]["message"].get("reasoning_content") == THOUGHT,
    Extra.USAGE_DETAILS: lambda body: (
        body["usage"].get("prompt_tokens_details", {}).get("cached_tokens") == CACHED_TOKENS
    ),
}


def _functions(body: Any) -> list[Any]:
    """Of the tool calls; their arguments are JSON that may be spaced otherwise."""
    functions = [call["function"] for call in body["choices"][0]["message"].get("tool_calls", ())]
    return [
        {**function, "arguments": json.dumps(json.loads(function["arguments"]), ensure_ascii=False)}
        for function in functions
    ]


@on(Part.EXTRAS)
def test_a_whole_answer_keeps_what_it_holds_beside_its_text(troupe: Troupe, part: Part) -> None:
    """Second choices, log probabilities, tool calls, reasoning, cached tokens: some caller pays for each of them."""

    async def act(found: Scene) -> None:
        answer = await found.provider.send(asked())

        body = answer.json()
        assert answer.content == SAID
        assert {extra for extra in troupe.extras if not KEPT[extra](body)} == set()
        if not found.provider.reads:
            assert answer.body == troupe.extras_body

    play(troupe, part, act)


@on(Part.BLANK)
def test_a_blank_answer_is_an_answer(troupe: Troupe, part: Part) -> None:
    """Whether to ask again is the dispatcher's to decide, and what was paid is known."""

    async def act(found: Scene) -> None:
        assert (await found.provider.send(asked())).blank

    play(troupe, part, act)


@on(Part.STREAM)
def test_a_stream_brings_the_text_in_order_then_its_end_and_its_price(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        chunks = await streamed(found)

        assert "".join(chunk.text for chunk in chunks) == SAID
        assert sum(chunk.has_content for chunk in chunks) >= 2
        assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
        assert [chunk.usage for chunk in chunks if chunk.usage][-1].output_tokens > 0

    play(troupe, part, act)


@on(Part.STREAM)
def test_a_stream_ends_with_the_end_marker(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        stream = found.provider.stream(asked(stream=True))
        events = b"".join([piece async for piece in stream])

        assert events.endswith(b"data: [DONE]\n\n")
        assert events.count(b"[DONE]") == 1

    play(troupe, part, act)


@on(Part.EMBEDDINGS)
def test_embeddings_come_one_per_text_in_their_order(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        answer = await found.provider.send(an_embedding_call(*TEXTS))

        assert [tuple(vector) for vector in answer.vectors] == list(VECTORS)
        assert answer.usage is not None

    play(troupe, part, act)


KINDS: Final = {
    Part.THROTTLED: FailureKind.THROTTLED,
    Part.OVERLOADED: FailureKind.TRANSIENT,
    Part.UNAUTHORISED: FailureKind.MISCONFIGURED,
    Part.REJECTED: FailureKind.REJECTED,
}


@on(*KINDS)
def test_an_error_answer_has_its_class_and_is_asked_for_once(troupe: Troupe, part: Part) -> None:
    """The dispatcher owns all retries: a provider that retries by itself multiplies them."""

    async def act(found: Scene) -> None:
        failure = await failure_of(found.provider.send(asked()))

        assert failure.kind is KINDS[part]
        assert failure.retry_after_s == (RETRY_AFTER_S if part is Part.THROTTLED else None)
        assert failure.message
        assert found.stub.calls == 1

    play(troupe, part, act)


@on(*KINDS)
def test_an_error_answer_to_a_stream_has_the_same_class(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        failure = await failure_of(streamed(found))

        assert failure.kind is KINDS[part]
        assert failure.retry_after_s == (RETRY_AFTER_S if part is Part.THROTTLED else None)
        assert found.stub.calls == 1

    play(troupe, part, act)


@on(Part.UNKNOWN_MODEL)
def test_a_model_that_is_not_there_is_the_operators_mistake(troupe: Troupe, part: Part) -> None:
    """A provider whose format cannot tell it from a bad request says at least that."""

    async def act(found: Scene) -> None:
        failure = await failure_of(found.provider.send(asked()))

        assert failure.kind is FailureKind.MISCONFIGURED or failure.ambiguous

    play(troupe, part, act)


@on(Part.HTML, Part.CUT_BODY)
def test_what_is_no_whole_answer_is_a_passing_trouble(troupe: Troupe, part: Part) -> None:
    """A gateway that passes these on as success loses answers silently."""

    async def act(found: Scene) -> None:
        failure = await failure_of(found.provider.send(asked()))

        assert failure.kind is FailureKind.TRANSIENT
        assert found.stub.calls == 1

    play(troupe, part, act)


@on(Part.HTML)
def test_a_web_page_is_no_stream(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        assert (await failure_of(streamed(found))).kind is FailureKind.TRANSIENT

    play(troupe, part, act)


@on(Part.CUT_STREAM, Part.SHORT_STREAM, Part.FAILING_STREAM)
def test_a_stream_that_breaks_gives_what_came_and_then_fails(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        chunks: list[Chunk] = []
        failure = await failure_of(read(chunks_of(found.provider, asked(stream=True)), chunks))

        assert SAID.startswith("".join(chunk.text for chunk in chunks))
        assert any(chunk.has_content for chunk in chunks)
        assert failure.kind is FailureKind.TRANSIENT
        if part is Part.SHORT_STREAM:
            assert failure.code == "stream_cut"

    play(troupe, part, act)


@on(Part.SILENT)
def test_a_cancelled_call_is_hung_up_at_once(troupe: Troupe, part: Part) -> None:
    """An upstream that goes on computing costs money and a slot."""

    async def act(found: Scene) -> None:
        call = asyncio.ensure_future(found.provider.send(asked()))
        await arrived(found)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await hung_up(found)

    play(troupe, part, act)


@on(Part.SILENT, Part.STALLING_STREAM)
def test_a_cancelled_reader_of_a_stream_hangs_up_at_once(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        reading = asyncio.ensure_future(streamed(found))
        await arrived(found)
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await hung_up(found)

    play(troupe, part, act)


@on(Part.STALLING_STREAM)
def test_a_stream_closed_early_is_hung_up_at_once(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        stream = cast("AsyncGenerator[bytes, None]", found.provider.stream(asked(stream=True)))
        async with aclosing(stream) as pieces:
            first = FirstContent()
            while not first.feed(await anext(pieces)):
                pass
        await hung_up(found)

    play(troupe, part, act)


@on(*KINDS)
def test_the_key_is_in_no_failure_and_in_no_repr(troupe: Troupe, part: Part) -> None:
    """Some servers quote the key they refuse."""

    async def act(found: Scene) -> None:
        failures = [
            await failure_of(found.provider.send(asked())),
            await failure_of(streamed(found)),
        ]

        assert KEY not in repr([failures, [str(ProviderFailure(failure)) for failure in failures]])
        assert KEY not in repr(found.provider)

    play(troupe, part, act)


@on(Part.ANSWER)
def test_closing_a_provider_leaves_the_shared_transport_open(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        await found.provider.aclose()
        other = troupe.make_provider(found.stub, found.transport)

        assert (await other.send(asked())).content == SAID

    play(troupe, part, act)


@on(Part.ANSWER)
def test_calls_at_the_same_time_do_not_mix(troupe: Troupe, part: Part) -> None:
    async def act(found: Scene) -> None:
        answers = await asyncio.gather(*(found.provider.send(asked()) for _ in range(8)))

        assert [answer.content for answer in answers] == [SAID] * 8
        assert found.stub.calls == 8

    play(troupe, part, act)


@pytest.mark.parametrize("name", sorted(set(PROVIDERS) - {"simulated"}))
def test_an_upstream_that_is_not_there_is_a_passing_trouble(name: str) -> None:
    troupe = PROVIDERS[name]

    async def run() -> None:
        transport = Transport()
        async with troupe.make_stub(Part.ANSWER) as stub:
            provider = troupe.make_provider(stub, transport)
        failure = await failure_of(provider.send(asked()))
        await transport.aclose()

        assert failure.kind is FailureKind.TRANSIENT

    asyncio.run(run())
