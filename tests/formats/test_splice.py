"""Joining a second stream to a broken first: nothing twice, nothing missing, and never two stories in one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.formats.splice import NoMatch, Splice

DONE = b"data: [DONE]\n\n"


def event(text: str | None = None, **choice: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    body = {"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": None, **choice}]}
    return b"data: %b\n\n" % json.dumps(body).encode()


def told(data: bytes) -> str:
    bodies = [line.removeprefix("data: ") for line in data.decode().split("\n\n") if line]
    return "".join(
        json.loads(body)["choices"][0]["delta"].get("content", "") for body in bodies if body != "[DONE]"
    )


@given(
    st.text(min_size=1, max_size=40),
    st.data(),
)
def test_however_both_are_split_the_client_reads_the_text_once(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    step = data.draw(st.integers(1, 7))
    first = [event(letter) for letter in text[:cut]]
    second = b"".join(
        [event(role="assistant"), *(event(text[at : at + step]) for at in range(0, len(text), step))]
    )
    second += DONE
    size = data.draw(st.integers(1, len(second)))
    splice = Splice(first)
    came = b"".join(splice.feed(second[at : at + size]) for at in range(0, len(second), size)) + splice.end()

    assert told(b"".join(first)) + told(came) == text
    assert came.endswith(DONE)


def test_what_comes_after_the_seam_comes_as_it_is() -> None:
    usage = b'data: {"choices":[],"usage":{"total_tokens":3}}\n\n'
    splice = Splice([event("a")])

    assert splice.feed(event("a")) == b""
    assert splice.feed(event("b", finish_reason="stop") + usage) == event("b", finish_reason="stop") + usage


@pytest.mark.parametrize(
    "second",
    [
        event("another story"),
        event("Once upo") + event("m"),
        event("Once") + DONE,
        b'data: {"error":{"message":"no"}}\n\n',
        b"data: no json\n\n",
        b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"id":"1"}]}}]}\n\n',
        b'data: {"choices":[{"index":1,"delta":{"content":"Once upon"}}]}\n\n',
    ],
)
def test_another_story_is_not_told(second: bytes) -> None:
    with pytest.raises(NoMatch):
        Splice([event("Once upon")]).feed(second)


def test_a_second_stream_that_ends_early_is_no_match() -> None:
    splice = Splice([event("Once upon")])
    assert splice.feed(event("Once")) == b""
    with pytest.raises(NoMatch):
        splice.end()


@pytest.mark.parametrize(
    "other",
    [
        {"tool_calls": [{"id": "1"}]},
        {"refusal": "no"},
        {"reasoning_content": "hm"},
        {"thinking_blocks": [{"type": "redacted_thinking", "data": "x"}]},
        {"images": [{"type": "image_url"}]},
    ],
)
def test_more_than_text_cannot_be_joined(other: dict[str, Any]) -> None:
    with pytest.raises(NoMatch):
        Splice([event("a"), event(None, delta=other)])
