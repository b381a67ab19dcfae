"""The older completions: their own bodies, and their translation through chat for upstreams that only chat."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import pytest

from headgate.core.answer import BLANK, Chunk, Usage
from headgate.core.call import Call, Format
from headgate.core.errors import InvalidRequest, ProviderFailure
from headgate.formats import chat, completions
from headgate.formats.reading import NoAnswer

COUNTS = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
HEAD = {"id": "cmpl-r1", "object": "text_completion", "created": 1_700_000_000, "model": "m"}


def a_call(prompt: Any = "Once upon", **fields: Any) -> Call:
    return Call(
        id="r1",
        model="m",
        format=Format.COMPLETIONS,
        fields={"prompt": prompt, **fields},
        created=1_700_000_000.9,
    )


def as_it_came(call: Call) -> Call:
    fields = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in call.fields.items()}
    return msgspec.structs.replace(call, fields=fields, size_bytes=100)


def completion(*texts: Any, finish_reason: Any = "stop", **more: Any) -> bytes:
    choices = [
        {"index": index, "text": text, "finish_reason": finish_reason} for index, text in enumerate(texts)
    ]
    return json.dumps({"choices": choices, "usage": COUNTS, **more}).encode()


# ---- Answers of their own -------------------------------------------------------------------------------------


def test_an_answer_is_kept_byte_by_byte() -> None:
    body = completion(" a time", finish_reason="length")
    answer = completions.read_answer(body)

    assert answer.body is body
    assert (answer.usage, answer.flaw, answer.finish_reason) == (Usage(11, 5), None, "length")
    assert answer.content == " a time"


@pytest.mark.parametrize(
    ("texts", "finish_reason", "blank"),
    [
        ([""], "stop", True),
        ([" \n"], None, True),
        (["\u00a0"], "", True),
        ([None], "stop", True),
        (["", ""], "stop", True),
        (["", "x"], "stop", False),
        ([""], "length", False),
        (["x"], "stop", False),
    ],
)
def test_one_without_text_is_blank_unless_it_says_why(
    texts: list[Any], finish_reason: str | None, blank: bool
) -> None:
    answer = completions.read_answer(completion(*texts, finish_reason=finish_reason))

    assert (answer.blank, answer.flaw) == (blank, BLANK if blank else None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no completion"),
        (b"[]", "no completion"),
        (b'{"choices": [{"message": {"content": "x"}}]}', "no completion"),
        (b'{"choices": [{"text": "\xff"}]}', "no completion"),
        (completion(), "holds no answer"),
        (completion("x", error={"message": "no"}), "is an error"),
    ],
)
def test_a_body_that_is_none_says_why(body: bytes, says: str) -> None:
    with pytest.raises(NoAnswer, match=says):
        completions.read_answer(body)


# ---- Through chat ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["Once upon", ["Once upon"]])
@pytest.mark.parametrize("came", [False, True])
def test_one_prompt_becomes_one_message_and_all_else_stays(prompt: Any, came: bool) -> None:
    call = a_call(prompt, temperature=0.5, stream_options={"include_usage": True})
    asked = completions.to_chat(as_it_came(call) if came else call)

    request = chat.read_request(asked)
    assert (asked.id, asked.model, asked.format) == ("r1", "m", Format.CHAT)
    assert list(request.messages) == [{"role": "user", "content": "Once upon"}]
    assert request.params == {"temperature": 0.5}
    assert chat.wants_usage(asked)
    assert call.read is None
    assert "prompt" in call.fields


@pytest.mark.parametrize("prompt", [None, 7, [], ["one", "two"], [1, 2, 3], [[1, 2]], {"text": "x"}], ids=str)
def test_a_prompt_that_is_not_one_text_cannot_be_a_chat(prompt: Any) -> None:
    for call in (a_call(prompt), as_it_came(a_call(prompt))):
        with pytest.raises(InvalidRequest, match="prompt must be one text") as rejected:
            completions.to_chat(call)
        assert rejected.value.param == "prompt"


def test_a_call_without_a_prompt_cannot_be_a_chat() -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        completions.to_chat(Call(id="r1", model="m", format=Format.COMPLETIONS, fields={}))


@pytest.mark.parametrize("usage", [Usage(11, 5), None])
def test_an_answer_of_a_chat_is_a_completion(usage: Usage | None) -> None:
    call = a_call()
    chatted = chat.write_answer(call, content=" a time", finish_reason="length", usage=usage)
    answer = completions.from_chat(chatted, call)

    choice = {"index": 0, "text": " a time", "logprobs": None, "finish_reason": "length"}
    assert answer.json() == {**HEAD, "choices": [choice], "usage": chatted.json()["usage"]}
    assert answer.content == " a time"
    assert (answer.usage, answer.flaw, answer.finish_reason) == (chatted.usage, None, "length")
    assert completions.read_answer(answer.body).usage == chatted.usage


def test_a_chat_that_said_nothing_is_a_blank_completion() -> None:
    """Tool calls and thoughts have no place in it, but they were an answer."""
    call = a_call()
    blank = completions.from_chat(chat.write_answer(call), call)
    called = completions.from_chat(chat.write_answer(call, tool_calls=[{"id": "1"}]), call)

    assert (blank.blank, blank.json()["choices"][0]["text"]) == (True, "")
    assert (called.blank, called.json()["choices"][0]["text"]) == (False, "")


# ---- Streams through chat -------------------------------------------------------------------------------------


async def _pieces(data: Iterable[bytes], closed: list[bool]) -> AsyncIterator[bytes]:
    try:
        for piece in data:
            yield piece
    finally:
        closed.append(True)


def translated(*data: bytes, call: Call | None = None) -> bytes:
    async def read() -> bytes:
        closed: list[bool] = []
        stream = completions.stream_from_chat(_pieces(data, closed), call or a_call())
        whole = b"".join([piece async for piece in stream])
        assert closed == [True]
        return whole

    return asyncio.run(read())


def written(*chunks: Chunk, **options: Any) -> bytes:
    writer = chat.StreamWriter(a_call(**options))
    return b"".join([*map(writer.write, chunks), writer.end()])


def bodies_of(data: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    return ["[DONE]" if line == b"[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_of_a_chat_is_one_of_a_completion_however_it_is_split(size: int) -> None:
    data = written(
        Chunk(reasoning="Hm."),
        Chunk(text=" a"),
        Chunk(text=" time", finish_reason="stop"),
        Chunk(usage=Usage(11, 5)),
        stream_options={"include_usage": True},
    )
    pieces = [data[at : at + size] for at in range(0, len(data), size)]

    first = {"index": 0, "text": " a", "logprobs": None, "finish_reason": None}
    last = {"index": 0, "text": " time", "logprobs": None, "finish_reason": "stop"}
    assert bodies_of(translated(*pieces)) == [
        {**HEAD, "choices": [first]},
        {**HEAD, "choices": [last]},
        {**HEAD, "choices": [], "usage": COUNTS},
        "[DONE]",
    ]


def test_usage_is_sent_only_on_request() -> None:
    assert bodies_of(translated(written(Chunk(text="x"), Chunk(usage=Usage(1, 1)))))[-1] == "[DONE]"
    assert b"usage" not in translated(written(Chunk(text="x"), Chunk(usage=Usage(1, 1))))


def test_a_stream_without_its_end_has_none_in_translation_either() -> None:
    data = written(Chunk(text="x")).removesuffix(b"data: [DONE]\n\n")

    assert [body["choices"][0]["text"] for body in bodies_of(translated(data))] == ["x"]


def test_an_error_in_the_stream_is_raised() -> None:
    with pytest.raises(ProviderFailure, match="overloaded"):
        translated(written(Chunk(text="x"))[:-14], b'data: {"error":{"message":"overloaded"}}\n\n')


def test_the_chat_is_read_to_its_end_and_adds_nothing() -> None:
    """Its connection can be used again only when all of it was read."""
    done = b"data: [DONE]\n\n"
    data = translated(written(Chunk(text="x")), b": bye\n\n", done, written(Chunk(text="y")))

    assert data.count(done) == 1
    assert data.endswith(done)


def test_leaving_the_stream_closes_the_chat_at_once() -> None:
    """Left to the garbage collector, the provider would go on working."""

    async def read() -> list[bool]:
        closed: list[bool] = []
        stream = completions.stream_from_chat(_pieces([written(Chunk(text="x"))] * 2, closed), a_call())
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]  # a generator
        return list(closed)

    assert asyncio.run(read()) == [True]
