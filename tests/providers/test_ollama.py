"""Answers and vectors: what reaches Ollama, and what its lines become."""

from typing import Any

import msgspec
import pytest
from providers.http_stage import ask, vectors_for
from providers.ollama_stage import STAGE, ollama_stage
from providers.stubs.ollama import (
    EMBEDDED,
    FIRST_LINE,
    LAST_LINE,
    TOOL_LINE,
    calls,
    documented,
    last,
    line,
    lines,
    vectors,
)
from providers.stubs.scripted import HANG, Reply, ScriptedServer

from headgate.core.answer import Usage
from headgate.core.errors import ProviderFailure
from headgate.core.failures import FailureKind
from headgate.core.ports.provider import Provider
from headgate.providers.exchange import LARGE_ANSWER_BYTES

OK = lines(line("Hello!"), last())
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA, "strict": True}}


def sent(request: Any, **options: Any) -> Any:
    return ollama_stage(**options).sent(OK, request)


def test_a_plain_question_gets_its_answer() -> None:
    answer = STAGE.answer(lines(line("Hel"), line("lo!"), last()))

    assert (answer.content, answer.finish_reason, answer.usage) == ("Hello!", "stop", Usage(26, 282))


def test_the_documented_examples_are_understood() -> None:
    answer = STAGE.answer(documented(FIRST_LINE, LAST_LINE))
    called = STAGE.answer(documented(TOOL_LINE))

    assert (answer.content, answer.finish_reason, answer.usage) == ("The", "stop", Usage(26, 282))
    (call,) = called.tool_calls
    assert call["function"] == {
        "name": "get_current_weather",
        "arguments": '{"format":"celsius","location":"Paris, FR"}',
    }
    assert (called.content, called.finish_reason) == (None, "tool_calls")


@pytest.mark.parametrize("path", ["", "/", "/v1", "/api/"])
def test_answers_are_always_streamed_inside(path: str) -> None:
    """A hanging model would otherwise look like a slow one until the deadline."""

    async def act(provider: Provider, server: ScriptedServer) -> None:
        await provider.send(ask())
        seen = server.requests[0]
        assert (seen.method, seen.path) == ("POST", "/api/chat")
        assert seen.headers["x-team"] == "blue"
        assert seen.body == {
            "model": "gemma3:4b",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
        }

    ollama_stage(path=path, headers={"x-team": "blue"}).play(act, OK)


def test_one_connection_serves_calls_in_turn() -> None:
    async def act(provider: Provider, server: ScriptedServer) -> int:
        await provider.send(ask())
        [_ async for _ in provider.stream(ask())]
        await provider.send(vectors_for("a"))
        return server.connections

    late = lines(line("Hello!"), last(), end_after_s=0.05)
    assert STAGE.play(act, late, late, vectors([0.1])) == 1


def test_sampling_parameters_become_options() -> None:
    body = sent(
        ask(temperature=0, top_p=0.9, seed=7, stop="END", max_tokens=50, num_ctx=8192, presence_penalty=0.5)
    )

    assert body["options"] == {
        "temperature": 0,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["END"],
        "num_predict": 50,
        "num_ctx": 8192,
        "presence_penalty": 0.5,
    }
    assert set(body) == {"model", "messages", "stream", "options"}


def test_a_request_wins_over_the_operators_options() -> None:
    body = sent(
        ask(
            temperature=1,
            options={"num_ctx": 1, "top_k": 5},
            max_completion_tokens=9,
            max_tokens=8,
            keep_alive=0,
        ),
        options={"temperature": 0, "num_ctx": 4096, "num_gpu": 1, "num_predict": 1},
        keep_alive="10m",
    )

    assert body["options"] == {"temperature": 1, "num_ctx": 1, "num_gpu": 1, "num_predict": 9, "top_k": 5}
    assert body["keep_alive"] == 0


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"response_format": {"type": "json_object"}}, {"format": "json"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
            {"format": SCHEMA},
        ),
        ({"response_format": {"type": "text"}}, {}),
        ({"reasoning_effort": "high"}, {"think": "high"}),
        ({"reasoning_effort": "none"}, {"think": False}),
        ({"think": True, "something_new": 1}, {"think": True, "something_new": 1}),
        ({"user": "u", "metadata": {"a": "b"}, "service_tier": "flex", "store": False, "n": 1}, {}),
        ({"parallel_tool_calls": True, "logprobs": False, "seed": None}, {}),
        ({"tools": [WEATHER], "tool_choice": "none"}, {}),
    ],
)
def test_parameters_are_translated_passed_or_harmless(params: dict[str, Any], told: dict[str, Any]) -> None:
    body = sent(ask(**params))

    assert {
        name: value for name, value in body.items() if name not in {"model", "messages", "stream"}
    } == told


@pytest.mark.parametrize(
    "params",
    [
        {"n": 2},
        {"logprobs": True},
        {"logit_bias": {"1": 2}},
        {"parallel_tool_calls": False},
        {"tool_choice": "required", "tools": [WEATHER]},
        {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "tools": [WEATHER]},
        {"tools": [{"type": "web_search"}]},
        {"response_format": {"type": "json_schema"}},
        {"options": 3},
    ],
)
def test_what_ollama_cannot_be_asked_is_refused_by_name(params: dict[str, Any]) -> None:
    failure = STAGE.refused_unsent(ask(**params))

    assert (failure.kind, failure.code) == (FailureKind.REJECTED, "unsupported_parameter")
    assert failure.message.startswith(next(iter(params)))


def test_tools_make_the_round_trip() -> None:
    """OpenAI names a result by its call, Ollama by its tool: the name is looked up in the conversation."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"age": 1}'},
    }
    body = sent(
        ask(
            messages=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "The weather?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "22°C"},
            ],
            tools=[WEATHER],
        )
    )

    assert body["tools"] == [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "The weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"index": 0, "name": "get_weather", "arguments": {"age": 1}},
                }
            ],
        },
        {"role": "tool", "content": "22°C", "tool_call_id": "call_1", "tool_name": "get_weather"},
    ]


def test_tool_calls_without_ids_get_some_that_every_provider_takes() -> None:
    answer = STAGE.answer(lines(calls(("a", {"x": 1}), ("b", {})), calls(("c", {})), last()))

    ids = [call["id"] for call in answer.tool_calls]
    assert [call["function"]["name"] for call in answer.tool_calls] == ["a", "b", "c"]
    assert len(set(ids)) == 3
    assert all(id_.startswith("call_") and len(id_) <= 40 and id_.replace("_", "").isalnum() for id_ in ids)
    assert all(set(call) == {"id", "type", "function"} for call in answer.tool_calls)


def test_images_stand_beside_the_text() -> None:
    parts = [
        {"type": "text", "text": "What is"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "text", "text": "this?"},
    ]

    assert sent(ask(parts))["messages"] == [{"role": "user", "content": "What is\nthis?", "images": ["aGk="]}]


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "function", "content": "b"}, "messages[0].role"),
        (
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}],
            },
            "messages[0].content[0].image_url",
        ),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0]"),
        ({"role": "assistant", "tool_calls": {"id": "a"}}, "messages[0].tool_calls"),
        ({"role": "assistant", "function_call": {"name": "a"}}, "messages[0].function_call"),
        ({"role": "assistant", "reasoning_content": ["a"]}, "messages[0].reasoning_content"),
        ({"role": "assistant", "thinking_blocks": "a thought"}, "messages[0].thinking_blocks"),
        ({"role": "assistant", "thinking_blocks": {"thinking": "a"}}, "messages[0].thinking_blocks"),
    ],
)
def test_a_message_ollama_cannot_take_is_refused_by_its_place(message: dict[str, Any], where: str) -> None:
    failure = STAGE.refused_unsent(ask(messages=[message]))

    assert failure.kind is FailureKind.REJECTED
    assert failure.message.startswith(f"{where} ")


@pytest.mark.parametrize(
    ("reason", "finish_reason"), [("stop", "stop"), ("length", "length"), ("load", "stop"), (None, "stop")]
)
def test_done_reasons_become_finish_reasons(reason: str | None, finish_reason: str) -> None:
    assert STAGE.answer(lines(line("Hi"), last(reason))).finish_reason == finish_reason


def test_a_call_cut_by_its_length_says_so() -> None:
    assert STAGE.answer(lines(calls(("a", {})), last("length"))).finish_reason == "length"


def test_thinking_is_not_content_and_a_blank_answer_is_blank() -> None:
    thinking = [line(message={"thinking": text}) for text in ("Let me ", "see…")]

    answer = STAGE.answer(lines(*thinking, line("42"), last()))
    assert (answer.content, answer.reasoning) == ("42", "Let me see…")
    blank = STAGE.answer(lines(*thinking, last()))
    assert (blank.blank, blank.reasoning) == (True, "Let me see…")


@pytest.mark.parametrize(
    ("message", "thinking"),
    [
        ({"reasoning_content": "Let me see…"}, "Let me see…"),
        ({"reasoning_content": None}, None),
        ({"reasoning_content": "", "thinking_blocks": []}, None),
        (
            {
                "thinking_blocks": [
                    {"type": "thinking", "thinking": "Let me see…", "signature": "c2ln"},
                    {"type": "redacted_thinking", "data": "ZGF0YQ=="},
                    {"type": "thinking", "thinking": "It is 42.", "signature": "c2ln"},
                ]
            },
            "Let me see…\nIt is 42.",
        ),
        (
            {
                "reasoning_content": "the text wins",
                "thinking_blocks": [{"type": "thinking", "thinking": "over the blocks", "signature": "c2ln"}],
            },
            "the text wins",
        ),
    ],
)
def test_what_an_assistant_thought_is_sent_back(message: dict[str, Any], thinking: str | None) -> None:
    question = {"role": "user", "content": "What is it?", "reasoning_content": "only assistants think"}
    body = sent(ask(messages=[question, {"role": "assistant", "content": "42", **message}, question]))

    told = {} if thinking is None else {"thinking": thinking}
    asked = {"role": "user", "content": "What is it?"}
    assert body["messages"] == [asked, {"role": "assistant", "content": "42", **told}, asked]


def test_thoughts_and_tool_calls_go_back_together() -> None:
    """A model that thinks between its tool calls reads its own thoughts again."""
    answer = STAGE.answer(lines(line(message={"thinking": "I need it."}), calls(("a", {"x": 1})), last()))
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0]["id"], "content": "7"}
    messages = sent(ask(messages=[{"role": "user", "content": "a?"}, answer.message, result]))["messages"]

    assert messages[1]["thinking"] == "I need it."
    assert messages[1]["tool_calls"][0]["function"] == {"index": 0, "name": "a", "arguments": {"x": 1}}


def test_an_answer_is_written_as_a_chat_completion() -> None:
    reply = lines(line(message={"thinking": "Let me see…"}), line("42"), last())
    call = msgspec.structs.replace(ask(), created=1_700_000_000.5)

    assert STAGE.answer(reply, call).json() == {
        "id": "chatcmpl-r1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "public",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "42", "reasoning_content": "Let me see…"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 26, "completion_tokens": 282, "total_tokens": 308},
    }


@pytest.mark.parametrize("count", [None, -1, "many", 10**12])
def test_a_prompt_from_the_cache_may_go_uncounted(count: object) -> None:
    """Half a count would look like a cheap call; none is estimated and marked so."""
    usage = STAGE.answer(lines(line("Hi"), last(prompt_eval_count=count))).usage

    assert usage is not None
    assert usage.estimated


def test_a_call_that_came_as_bytes_is_read() -> None:
    """Fields of a client's body are JSON as it came."""
    given = ask(
        "What is it?", temperature=0.5, reasoning_effort="low", stream_options={"include_usage": True}
    )
    fields = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.fields.items()}
    body = sent(msgspec.structs.replace(given, fields=fields))

    assert body == {
        "model": "gemma3:4b",
        "messages": [{"role": "user", "content": "What is it?"}],
        "stream": True,
        "think": "low",
        "options": {"temperature": 0.5},
    }


def test_vectors_come_in_the_order_asked() -> None:
    async def act(provider: Provider, server: ScriptedServer) -> None:
        answer = await provider.send(
            vectors_for("a", "b", dimensions=3, encoding_format="base64", user="u", truncate=False)
        )
        assert [list(vector) for vector in answer.vectors] == [
            [0.010071029, -0.0017594862, 0.05007221],
            [-0.0098027075, 0.06042469, 0.025257962],
        ]
        assert answer.usage == Usage(8, 0)
        seen = server.requests[0]
        assert seen.path == "/api/embed"
        assert seen.body == {
            "model": "gemma3:4b",
            "input": ["a", "b"],
            "dimensions": 3,
            "truncate": False,
            "keep_alive": -1,
            "options": {"num_ctx": 512},
        }

    reply = Reply(EMBEDDED.encode(), headers={"content-type": "application/json"})
    ollama_stage(keep_alive=-1, options={"num_ctx": 512}).play(act, reply)


def test_vectors_are_passed_on_as_they_were_written() -> None:
    """More digits than a number can hold reach the client; a number that was read and written would lose them."""
    digits = b"0.01007102900000000000012345"
    body = EMBEDDED.encode().replace(b"0.010071029", digits)
    answer = STAGE.answer(Reply(body, headers={"content-type": "application/json"}), vectors_for("a", "b"))

    assert digits in answer.body
    assert answer.json() == {
        "object": "list",
        "model": "public",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.010071029, -0.0017594862, 0.05007221]},
            {"object": "embedding", "index": 1, "embedding": [-0.0098027075, 0.06042469, 0.025257962]},
        ],
        "usage": {"prompt_tokens": 8, "total_tokens": 8},
    }


def test_many_vectors_are_read_beside_the_loop() -> None:
    """So many bytes are read in a thread; the answer is the same."""
    vector = [0.123456789 * at for at in range(1024)]
    answer = STAGE.answer(vectors(*[vector] * 80), vectors_for(*["a"] * 80))

    assert len(answer.body) > LARGE_ANSWER_BYTES
    assert [list(got) for got in answer.vectors] == [vector] * 80


def test_an_empty_vector_is_a_flaw() -> None:
    answer = STAGE.answer(vectors([0.1], []), vectors_for("a", "b"))

    assert answer.flaw == "vector 1 is empty"


def test_vectors_that_were_not_counted_are_estimated() -> None:
    answer = STAGE.answer(vectors([0.1], prompt_eval_count=None), vectors_for("a"))

    assert answer.usage == Usage(1, 0, estimated=True)


@pytest.mark.parametrize(
    "reply", [vectors([0.1]), vectors([0.1], [0.2], [0.3]), vectors(["x"], ["y"]), vectors([1], None)]
)
def test_vectors_that_do_not_fit_the_texts_are_a_broken_envelope(reply: Reply) -> None:
    async def act(provider: Provider, server: ScriptedServer) -> None:
        with pytest.raises(ProviderFailure) as caught:
            await provider.send(vectors_for("a", "b"))
        assert (caught.value.failure.kind, caught.value.failure.code) == (
            FailureKind.TRANSIENT,
            "bad_envelope",
        )

    STAGE.play(act, reply)


@pytest.mark.parametrize("reply", [Reply(silent=True), lines(line("Hel"), ending=HANG)])
def test_a_cancelled_call_leaves_at_once(reply: Reply) -> None:
    """Ollama computes as long as the connection is open: a cancelled call must not keep the model busy."""
    assert STAGE.seconds_until_left(reply, streamed=False) < 1
