"""Replies as they are kept under idempotency keys: replayed byte by byte, and those of older versions can still be read."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.calls.stored import decode_reply, encode_reply
from headgate.core.answer import Reply, Usage

STORY: dict[str, Any] = {
    "request_id": "r1",
    "model": "m",
    "upstream": "u",
    "usage": Usage(3, 4, estimated=True),
    "finish_reason": "length",
    "attempts": 2,
    "latency_ms": 1.5,
    "queue_ms": 0.5,
    "upstream_ms": 1.0,
    "cost_usd": 0.25,
}


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"message":{"content":"\\u00e9\\/ \xc3\xa9"}}], "x-new": 1.0e3 }',
        b'{"choices":[]}\n',
        b' {"choices":[]}',
        b"{}",
        b'data: {"choices":[]}\n\ndata: [DONE]\n\n',
        b"data: \xff\xfe\n\n",
        b"as it came",
        b"",
    ],
)
def test_a_reply_is_replayed_byte_by_byte_with_its_story(body: bytes) -> None:
    reply = Reply(body=body, **STORY)

    assert decode_reply(encode_reply(reply)) == reply


@given(st.binary(max_size=50), st.text(max_size=50), st.none() | st.floats(0, 9))
def test_so_is_any_stream_and_any_answer(octets: bytes, text: str, cost_usd: float | None) -> None:
    answer = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
    for body in (b"data: " + octets, b"data: " + text.encode(errors="surrogatepass"), answer):
        reply = Reply(body=body, **{**STORY, "cost_usd": cost_usd})
        assert decode_reply(encode_reply(reply)) == reply


def test_the_answer_itself_can_be_read_in_the_table() -> None:
    kept = json.loads(encode_reply(Reply(body=b'{"choices":[{"message":{"content":"Yes."}}]}', **STORY)))
    streamed = json.loads(encode_reply(Reply(body=b"data: x\n\n", **STORY)))

    assert kept["body"]["choices"][0]["message"]["content"] == "Yes."
    assert streamed["events"] == "data: x\n\n"


def test_a_reply_that_came_over_http_to_an_older_version_is_read() -> None:
    reply = Reply(body=b"data: [DONE]\n\n", **STORY)

    assert decode_reply(msgspec.msgpack.encode(reply)) == reply


def test_a_reply_of_the_library_of_an_older_version_is_read() -> None:
    """Kept by its parts, without a body."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    older = {**STORY, "content": "Yes.", "tool_calls": [call], "refusal": None, "finish_reason": "tool_calls"}
    reply = decode_reply(msgspec.json.encode(older))

    assert (reply.content, list(reply.tool_calls), reply.refusal) == ("Yes.", [call], None)
    assert (reply.finish_reason, reply.usage, reply.attempts) == ("tool_calls", STORY["usage"], 2)
    assert reply.json()["choices"][0]["finish_reason"] == "tool_calls"
