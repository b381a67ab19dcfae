"""What the model thought: whole, in streams, and back to Anthropic with its signatures."""

from typing import Any

import pytest
from providers.anthropic_stage import STAGE
from providers.http_stage import ask
from providers.stubs.anthropic import (
    START,
    TEXT_BLOCK,
    THINKING_BLOCK,
    TOOL_BLOCK,
    block,
    ending,
    events,
    said,
    text_block,
    thinking_block,
)

from headgate.core.call import Call

REDACTED = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3"}


def sent(call: Call) -> Any:
    return STAGE.sent(said(TEXT_BLOCK), call)


def test_thoughts_come_beside_the_content_with_their_signatures() -> None:
    other = {"type": "thinking", "thinking": " One more.", "signature": "ErUBCkYIBxgC"}
    unsigned = {"type": "thinking", "thinking": " Unsigned."}
    answer = STAGE.answer(said(THINKING_BLOCK, REDACTED, other, unsigned, TEXT_BLOCK))

    assert answer.reasoning == "Let me see… One more. Unsigned."
    assert answer.message["thinking_blocks"] == [THINKING_BLOCK, REDACTED, other, unsigned]


def test_an_answer_without_thoughts_has_no_place_for_them() -> None:
    empty = {"type": "thinking", "thinking": ""}

    for answer in (STAGE.answer(said(TEXT_BLOCK)), STAGE.answer(said(empty, TEXT_BLOCK))):
        assert set(answer.message) == {"role", "content"}


def test_thoughts_go_back_in_front_of_what_was_said() -> None:
    """Anthropic wants those of a tool call back as they were, or it rejects the call's result."""
    arguments = '{"location": "Paris"}'
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    body = sent(
        ask(
            messages=[
                {"role": "user", "content": "The weather?"},
                {
                    "role": "assistant",
                    "content": "A moment.",
                    "reasoning_content": "Let me see…",
                    "thinking_blocks": [THINKING_BLOCK, REDACTED],
                    "tool_calls": [call],
                },
                {"role": "tool", "tool_call_id": "c", "content": "sunny"},
            ]
        )
    )

    assert body["messages"][1]["content"] == [
        THINKING_BLOCK,
        REDACTED,
        {"type": "text", "text": "A moment."},
        {"type": "tool_use", "id": "c", "name": "get_weather", "input": {"location": "Paris"}},
    ]


def test_an_answer_goes_back_as_it_came() -> None:
    """A client that sends the whole message back sends Anthropic its own blocks."""
    answer = STAGE.answer(said(THINKING_BLOCK, TEXT_BLOCK, TOOL_BLOCK, stop_reason="tool_use"))
    body = sent(ask(messages=[{"role": "user", "content": "Hi"}, dict(answer.message)]))

    assert body["messages"][1] == {"role": "assistant", "content": [THINKING_BLOCK, TEXT_BLOCK, TOOL_BLOCK]}


@pytest.mark.parametrize(
    "thoughts",
    [
        {"reasoning_content": "Let me see…"},
        {"reasoning_content": "Let me see…", "thinking_blocks": []},
        {"thinking_blocks": None},
    ],
)
def test_thoughts_without_a_signature_are_not_sent(thoughts: dict[str, Any]) -> None:
    """They may be another provider's, and Anthropic rejects them."""
    message = {"role": "assistant", "content": "Hello!", **thoughts}
    body = sent(ask(messages=[{"role": "user", "content": "Hi"}, message]))

    assert body["messages"][1]["content"] == [TEXT_BLOCK]


def test_a_message_of_thoughts_alone_is_left_out() -> None:
    """An answer that ended within its thoughts: Anthropic rejects a message whose last block is one."""
    thought = {"role": "assistant", "content": None, "thinking_blocks": [THINKING_BLOCK]}
    body = sent(
        ask(messages=[{"role": "user", "content": "Hi"}, thought, {"role": "user", "content": "Well?"}])
    )

    assert [turn["role"] for turn in body["messages"]] == ["user"]


def test_a_thought_that_has_ended_comes_whole_with_its_signature() -> None:
    """Anthropic wants each back as it was. A client that appends the lists has them all, in their order."""
    chunks = STAGE.chunks(
        events(START, *thinking_block(0), *block(1, REDACTED), *text_block(2, "Hi"), *ending())
    )

    assert [list(chunk.thinking_blocks) for chunk in chunks if chunk.thinking_blocks] == [
        [THINKING_BLOCK],
        [REDACTED],
    ]
    assert [bool(chunk.text) for chunk in chunks].index(True) == 4


def test_a_thought_may_show_nothing_but_its_signature() -> None:
    """`thinking: {"display": "omitted"}` asks for that."""
    start = {"type": "thinking", "thinking": "", "signature": ""}
    signature = {"type": "signature_delta", "signature": "EosnCkYICxIM"}
    chunks = STAGE.chunks(events(START, *block(0, start, signature), *text_block(1, "Hi"), *ending()))

    assert not any(chunk.reasoning for chunk in chunks)
    assert list(chunks[0].thinking_blocks) == [{**start, "signature": "EosnCkYICxIM"}]


def test_a_server_that_does_not_sign_is_not_signed_for() -> None:
    start = {"type": "thinking", "thinking": "Hm"}
    thought = {"type": "thinking_delta", "thinking": "m."}
    chunks = STAGE.chunks(events(START, *block(0, start, thought), *text_block(1, "Hi"), *ending()))

    assert [chunk.reasoning for chunk in chunks if chunk.reasoning] == ["Hm", "m."]
    assert list(chunks[2].thinking_blocks) == [{"type": "thinking", "thinking": "Hmm."}]


def test_an_empty_thought_is_nothing() -> None:
    empty = block(0, {"type": "thinking", "thinking": ""})
    chunks = STAGE.chunks(events(START, *empty, *text_block(1, "Hi"), *ending()))

    assert chunks == STAGE.chunks(events(START, *text_block(0, "Hi"), *ending()))
