"""Requests and whole answers in OpenAI's format."""

import asyncio
import base64
import struct
import threading
from collections import UserDict, UserList
from typing import Any

import msgspec
import openai
import pytest
from contracts.provider_stage import CACHED_TOKENS, KEY, SAID, TEXTS, VECTORS
from providers.asking import a_call, an_embedding_call
from providers.openai_stage import MODEL, failure_from, on_stub, send
from providers.stubs.openai import (
    JSON,
    OpenAIStub,
    completion,
    embeddings,
    error,
    events,
    stream,
    whole,
    with_extras,
    words,
)
from providers.stubs.scripted import Reply

from headgate.core.answer import Answer, Usage
from headgate.core.call import Call
from headgate.core.failures import FailureKind
from headgate.formats import embeddings as embeddings_format
from headgate.providers.openai import OpenAIProvider

CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def answer_to(reply: Reply) -> Answer:
    return on_stub(send, reply)


def sent_for(call: Call, **options: Any) -> Any:
    """The request as the server got it."""

    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> Any:
        await provider.send(call)
        return stub.requests[0]

    return on_stub(act, completion(), **options)


def test_the_stub_speaks_the_real_format() -> None:
    """The official client understands what these tests answer with, so the tests prove something."""

    async def run() -> None:
        script = (
            completion({"tool_calls": [CALL]}),
            with_extras(),
            stream(events(*words())),
            embeddings(),
            error(400, code="x"),
        )
        async with (
            OpenAIStub(*script) as stub,
            openai.AsyncOpenAI(base_url=stub.url, api_key=KEY, max_retries=0) as client,
        ):
            asked: Any = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
            whole_answer = await client.chat.completions.create(**asked)
            assert whole_answer.choices[0].message.content == SAID
            assert whole_answer.choices[0].message.tool_calls[0].function.name == "weather"
            extras = await client.chat.completions.create(**asked)
            assert [choice.message.content for choice in extras.choices] == [SAID, SAID]
            assert extras.choices[1].logprobs.content[0].logprob < 0
            assert extras.usage.prompt_tokens_details.cached_tokens == CACHED_TOKENS
            pieces = [piece async for piece in await client.chat.completions.create(**asked, stream=True)]
            assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == SAID
            vectors = await client.embeddings.create(model="m", input=list(TEXTS), encoding_format="float")
            assert [tuple(item.embedding) for item in vectors.data] == list(VECTORS)
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**asked)
            assert caught.value.code == "x"

    asyncio.run(run())


def test_a_request_goes_out_with_its_model_its_key_and_nothing_lost() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12 °C"},
    ]
    params: dict[str, Any] = {
        "temperature": 0,
        "tools": [TOOL],
        "an_option_of_next_year": {"deep": [1, None]},
    }

    asked = sent_for(a_call(messages=messages, **params))

    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["content-type"] == "application/json"
    assert asked.body == {"model": MODEL, "messages": messages, **params}


def test_azure_gets_its_header_and_its_version() -> None:
    asked = sent_for(
        a_call(),
        auth="api-key",
        query={"api-version": "2024-10-21", "odd": "a&b"},
        headers={"X-Team": "north", "User-Agent": "ours"},
    )

    assert asked.path == "/v1/chat/completions?api-version=2024-10-21&odd=a%26b"
    assert asked.headers["api-key"] == KEY
    assert "authorization" not in asked.headers
    assert (asked.headers["x-team"], asked.headers["user-agent"]) == ("north", "ours")


def test_a_server_without_keys_gets_none() -> None:
    assert "authorization" not in sent_for(a_call(), api_key=None).headers


def test_callers_may_use_their_own_mappings_and_lists() -> None:
    messages: Any = UserList([UserDict({"role": "user", "content": "hi"})])

    asked = sent_for(a_call(messages=messages))

    assert asked.body["messages"] == [{"role": "user", "content": "hi"}]


def test_a_tool_call_comes_back_as_it_was_written() -> None:
    answer = answer_to(completion({"content": None, "tool_calls": [CALL]}))

    assert answer.tool_calls == [CALL]
    assert answer.content is None
    assert not answer.blank


def test_a_function_call_of_the_older_format_is_a_tool_call() -> None:
    (call,) = answer_to(
        completion({"content": None, "function_call": {"name": "f", "arguments": "{}"}})
    ).tool_calls

    assert call["function"] == {"name": "f", "arguments": "{}"}


def test_a_refusal_is_an_answer() -> None:
    answer = answer_to(completion({"content": None, "refusal": "I'd rather not."}))

    assert answer.refusal == "I'd rather not."
    assert not answer.blank


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "a_new_one", None])
def test_finish_reasons_pass_untouched(reason: str | None) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": reason}

    assert answer_to(completion(choices=[choice])).finish_reason == reason


def test_text_in_parts_is_put_together() -> None:
    parts = [
        {"type": "thinking", "thinking": []},
        {"type": "text", "text": "A"},
        {"type": "text", "text": "B"},
    ]

    assert answer_to(completion({"content": parts})).content == "AB"


def test_usage_is_what_the_server_counted() -> None:
    assert answer_to(completion()).usage == Usage(12, 4)
    assert answer_to(completion(usage=None)).usage is None
    assert answer_to(completion(usage={"prompt_tokens": "?"})).usage is None, (
        "an answer is worth more than its bill"
    )


def test_a_body_in_many_pieces_is_one_body() -> None:
    assert answer_to(Reply(completion().body, headers=JSON, piece_bytes=7)).content == SAID


_KNOT: list[Any] = []
_KNOT.append(_KNOT)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "a value of type object"),
        ({"deep": [{1, object}]}, "a value of type type"),
        ("\ud800", "surrogates not allowed"),
        (_KNOT, "recursion"),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_what_json_cannot_carry_is_rejected_and_never_sent(value: object, why: str, streams: bool) -> None:
    seen: list[int] = []

    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> None:
        call = a_call(metadata=value, stream=streams)
        try:
            await (anext(aiter(provider.stream(call))) if streams else provider.send(call))
        finally:
            seen.append(stub.calls)

    failure = failure_from(act, completion())

    assert failure.kind is FailureKind.REJECTED
    assert "cannot be written as JSON" in failure.message
    assert why in failure.message
    assert seen == [0]


def test_several_answers_may_be_asked_for() -> None:
    assert sent_for(a_call(n=2)).body["n"] == 2


def test_reasoning_can_be_sent_back() -> None:
    """Servers that think between tool calls want their thoughts in the next request."""
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
        "reasoning_content": "hm",
        "thinking_blocks": blocks,
    }

    assert sent_for(a_call(messages=[turn])).body["messages"] == [turn]


def test_what_the_model_thought_is_read() -> None:
    assert answer_to(completion({"reasoning_content": "hm"})).reasoning == "hm"
    assert answer_to(completion({"reasoning": "hm"})).reasoning == "hm"


# ---- Embeddings ------------------------------------------------------------------------------------------


async def embed(provider: OpenAIProvider, _: OpenAIStub) -> Answer:
    return await provider.send(an_embedding_call(*TEXTS))


def test_embeddings_are_asked_for_with_their_parameters() -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> Any:
        await provider.send(an_embedding_call(*TEXTS, dimensions=3))
        return stub.requests[0]

    asked = on_stub(act, embeddings())

    assert asked.path == "/v1/embeddings"
    assert asked.body == {"model": MODEL, "input": list(TEXTS), "dimensions": 3}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(
            [{"index": 1, "embedding": VECTORS[1]}, {"index": 0, "embedding": VECTORS[0]}], id="out of order"
        ),
        pytest.param([{"embedding": VECTORS[0]}, {"embedding": VECTORS[1]}], id="without numbers"),
        pytest.param(
            [
                {"index": index, "embedding": base64.b64encode(struct.pack("<3f", *vector)).decode()}
                for index, vector in enumerate(VECTORS)
            ],
            id="as base64",
        ),
    ],
)
def test_vectors_come_in_the_order_of_their_texts(data: object) -> None:
    answer = on_stub(embed, embeddings(data=data))

    assert [tuple(vector) for vector in answer.vectors] == list(VECTORS)
    assert answer.usage == Usage(3, 0)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param([], id="none"),
        pytest.param([{"index": 0, "embedding": [1.0]}], id="too few"),
        pytest.param([{"index": index, "embedding": [1.0]} for index in range(3)], id="too many"),
        pytest.param([{"index": 1, "embedding": [1.0]}, {"index": 1, "embedding": [2.0]}], id="one twice"),
        pytest.param([{"index": 0}, {"index": 1}], id="without vectors"),
    ],
)
def test_vectors_that_do_not_fit_their_texts_are_no_answer(data: object) -> None:
    """Handing a text another text's vector would poison an index silently."""
    failure = failure_from(embed, embeddings(data=data))

    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param([{"index": 0, "embedding": ["x"]}, {"index": 1, "embedding": [1.0]}], id="no numbers"),
        pytest.param([{"index": 0, "embedding": "!"}, {"index": 1, "embedding": "AA=="}], id="bad base64"),
    ],
)
def test_vectors_that_are_none_fail_where_they_are_read(data: object) -> None:
    """The bytes pass as they came; a check that reads them finds the flaw."""
    answer = on_stub(embed, embeddings(data=data))

    with pytest.raises((msgspec.ValidationError, ValueError)):
        _ = answer.vectors


def test_a_large_list_of_embeddings_is_looked_at_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def look(body: bytes, call: Call) -> Answer:
        seen.append(threading.current_thread() is threading.main_thread())
        return read_answer(body, call)

    read_answer = embeddings_format.read_answer
    monkeypatch.setattr(embeddings_format, "read_answer", look)
    large = [[0.125] * 100_000] * len(TEXTS)

    assert on_stub(embed, embeddings()).usage == Usage(3, 0)
    assert on_stub(embed, embeddings(large)).usage == Usage(3, 0)
    assert seen == [True, False]


# ---- Connections ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([completion(), completion()], id="answers"),
        pytest.param([error(429), completion()], id="an error"),
        pytest.param([whole({"choices": []}), completion()], id="a broken envelope"),
    ],
)
def test_a_connection_is_used_again(script: list[Reply]) -> None:
    async def act(provider: OpenAIProvider, stub: OpenAIStub) -> int:
        for _ in script:
            await asyncio.gather(send(provider, stub), return_exceptions=True)
        return stub.connections

    assert on_stub(act, *script) == 1
