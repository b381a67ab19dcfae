"""Streams in OpenAI's format: where their content begins and how they ended, however the bytes were split."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.core.answer import Usage
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.formats import sse
from headgate.formats.sse import KEPT_BYTES, Event, Events, FirstContent, Tail

DONE = b"data: [DONE]\n\n"
ROLE = {"role": "assistant", "content": "", "refusal": None}
COUNTED = {"prompt_tokens": 11, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}


def event(body: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(body, ensure_ascii=False).encode()


def chat(delta: Mapping[str, Any] | None, finish_reason: str | None = None, **more: Any) -> bytes:
    return event(
        {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more}
    )


def text(words: str) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "text": words}]})


def pieces_of(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def first_verdict(pieces: Iterable[bytes]) -> tuple[str, int | Failure]:
    """Content after so many bytes, an error, or neither."""
    first = FirstContent()
    fed = 0
    try:
        for piece in pieces:
            fed += len(piece)
            if first.feed(piece):
                return "content", fed
    except ProviderFailure as error:
        return "failed", error.failure
    return "nothing", 0


def tail_verdict(pieces: Iterable[bytes]) -> tuple[object, ...]:
    tail = Tail()
    for piece in pieces:
        tail.feed(piece)
    return tail.done, tail.finished, tail.usage, tail.failure, tail.events


SILENT = {
    "a comment": b": OPENROUTER PROCESSING\n\n",
    "an empty comment": b":\n\n",
    "an event without data": b"event: ping\n\n",
    "empty data": b"data:\n\n",
    "blank data": b"data: \n\n",
    "other fields": b"id: 7\nretry: 3000\n\n",
    "a role": chat(ROLE),
    "a role with nothing": chat({"role": "assistant", "content": None}),
    "an empty delta": chat({}),
    "no delta": chat(None),
    "empty lists": chat({"tool_calls": [], "content": "", "reasoning_content": ""}),
    "an end": chat({}, "stop"),
    "usage": event({"id": "c", "choices": [], "usage": COUNTED}),
    "no choices": event({"id": "c", "prompt_filter_results": [{"prompt_index": 0}]}),
    "null choices": event({"id": "c", "choices": None}),
    "no error": chat(ROLE, error=None),
    "an empty text": text(""),
    "another shape": event({"choices": "later"}),
    "a list": event([1, 2]),
    "a list of one": event(["ping"]),
    "the end": DONE,
}
SPEAKING = {
    "text": chat({"content": "Hi"}),
    "a blank": chat({"content": " "}),
    "the words null": chat({"content": "null"}),
    "text that speaks of an error": chat({"content": '{"error": 1}', "role": "assistant"}),
    "parts": chat({"content": [{"type": "thinking", "thinking": [{"text": "hm"}]}]}),
    "a tool call": chat(
        {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]}
    ),
    "a function call": chat({"function_call": {"name": "f", "arguments": ""}}),
    "a refusal": chat({"content": None, "refusal": "I won't"}),
    "reasoning": chat({"reasoning_content": "Let me see"}),
    "reasoning under its newer name": chat({"reasoning": "Let me see"}),
    "a block of reasoning": chat({"thinking_blocks": [{"type": "redacted_thinking", "data": "x"}]}),
    "sound": chat({"audio": {"id": "a"}}),
    "images": chat({"images": [{"type": "image_url"}]}),
    "a completion's text": text("Hi"),
    "a second choice": event({"choices": [{"delta": {}}, {"delta": {"content": "x"}}]}),
    "two lines of data": b'data: {"choices": [{"delta":\ndata: {"content": "x"}}]}\n\n',
    "CRLF": chat({"content": "Hi"}).replace(b"\n", b"\r\n"),
    "no blank after the colon": chat({"content": "Hi"}).replace(b"data: ", b"data:"),
}


@pytest.mark.parametrize("silent", SILENT.values(), ids=SILENT)
def test_what_says_nothing_is_no_content(silent: bytes) -> None:
    """Until the first content everything can be retried; these must not commit a caller to an upstream."""
    assert first_verdict([silent]) == ("nothing", 0)


def test_an_end_without_content_is_seen_however_it_is_split() -> None:
    """What comes after it is not waited for."""
    whole = chat(ROLE) + chat({}, "stop") + DONE
    for size in (1, 7, len(whole)):
        first = FirstContent()
        for at in range(0, len(whole), size):
            assert not first.done
            assert not first.feed(whole[at : at + size])
        assert first.done


def test_text_about_the_end_is_content_and_not_the_end() -> None:
    first = FirstContent()

    assert first.feed(chat({"content": "data: [DONE]"}))
    assert not first.done


@pytest.mark.parametrize("speaking", SPEAKING.values(), ids=SPEAKING)
def test_what_says_something_is_content(speaking: bytes) -> None:
    assert first_verdict([speaking])[0] == "content"


FAILING: Mapping[str, tuple[bytes, FailureKind, str | None]] = {
    "OpenAI": (
        event({"error": {"message": "boom", "type": "server_error", "code": None}}),
        FailureKind.TRANSIENT,
        "server_error",
    ),
    "throttled": (
        event({"error": {"message": "slow", "type": "requests", "code": "rate_limit_exceeded"}}),
        FailureKind.THROTTLED,
        "rate_limit_exceeded",
    ),
    "vLLM": (
        event({"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}),
        FailureKind.REJECTED,
        "BadRequestError",
    ),
    "older vLLM": (
        event({"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}),
        FailureKind.REJECTED,
        "BadRequestError",
    ),
    "older llama.cpp": (
        b'error: {"code":400,"message":"exceeds the context size","type":"invalid_request_error"}\n\n',
        FailureKind.REJECTED,
        "invalid_request_error",
    ),
    "OpenRouter": (
        chat({"content": ""}, "error", error={"code": 502, "message": "provider disconnected"}),
        FailureKind.TRANSIENT,
        None,
    ),
    "an event of that name": (b"event: error\n" + event({"message": "boom"}), FailureKind.TRANSIENT, None),
    "a text": (b"event: error\ndata: boom\n\n", FailureKind.TRANSIENT, None),
    "the name after the data": (b"data: {}\nevent: error\n\n", FailureKind.TRANSIENT, None),
    "Ollama": (event({"error": "model runner has stopped"}), FailureKind.TRANSIENT, None),
    "Anthropic's shape": (
        event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        FailureKind.THROTTLED,
        "overloaded_error",
    ),
    "no JSON": (b'data: {"choices": [{"del\n\n', FailureKind.TRANSIENT, "bad_envelope"),
}


@pytest.mark.parametrize(("failing", "kind", "code"), FAILING.values(), ids=FAILING)
def test_an_error_before_content_is_a_failure_with_its_class(
    failing: bytes, kind: FailureKind, code: str | None
) -> None:
    verdict, failure = first_verdict([chat(ROLE) + failing])

    assert verdict == "failed"
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.code) == (kind, code)


def test_an_error_after_content_is_no_concern_of_the_beginning() -> None:
    assert first_verdict([SPEAKING["text"] + FAILING["OpenAI"][0]])[0] == "content"


def test_an_event_without_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never ends its line must not fill the memory."""
    monkeypatch.setattr(sse, "MOST_EVENT_BYTES", 1000)

    verdict, failure = first_verdict([b"data: "] + [b"x" * 100] * 11)

    assert verdict == "failed"
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")
    assert first_verdict([b": " + b"x" * 900 + b"\n"] * 5) == ("nothing", 0), "comments are not held"
    assert first_verdict([chat(ROLE)] * 50) == ("nothing", 0), "each event may be that long"


ANY_EVENT = st.sampled_from(
    [*SILENT.values(), *SPEAKING.values(), *(failing for failing, _, _ in FAILING.values())]
)
CUTS = st.lists(st.integers(min_value=0, max_value=10_000), max_size=12)


def test_the_content_is_seen_with_its_last_byte_and_not_later() -> None:
    before = SILENT["a comment"] + SILENT["a role"]
    data = before + SPEAKING["text"] + SPEAKING["text"]

    assert first_verdict(pieces_of(data, range(len(data)))) == ("content", len(before + SPEAKING["text"]))


@given(st.lists(ANY_EVENT, max_size=6), CUTS)
@example([*SILENT.values(), SPEAKING["CRLF"]], list(range(10_000)))
def test_any_split_finds_the_same_beginning(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)

    verdict, failure = first_verdict([data])
    split_verdict, split_failure = first_verdict(pieces_of(data, cuts))

    assert split_verdict == verdict
    if verdict == "failed":
        assert split_failure == failure


@given(st.lists(ANY_EVENT, max_size=6), CUTS)
def test_any_split_gives_the_same_events(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    events, split = Events(), Events()

    assert [found for piece in pieces_of(data, cuts) for found in split.feed(piece)] == events.feed(data)


def test_an_event_has_its_name_and_all_its_lines() -> None:
    events = Events()

    assert events.feed(b"event: hint\ndata: one\ndata:two\n\ndata: three\n\ndata: rest") == [
        Event(b"hint", b"one\ntwo"),
        Event(b"", b"three"),
    ]
    assert events.end() == [Event(b"", b"rest")]


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_no_bytes_at_all_break_the_readers(data: bytes) -> None:
    """Only a failure with a class may come out, whatever a server sends."""
    assert first_verdict([data])[0] in {"content", "failed", "nothing"}
    tail_verdict([data])


# ---- The end ---------------------------------------------------------------------------------------------

ENDINGS: Mapping[str, Callable[[], bytes]] = {
    "as OpenAI ends": lambda: chat({}, "stop") + event({"choices": [], "usage": COUNTED}) + DONE,
    "with CRLF": lambda: (chat({}, "stop") + event({"choices": [], "usage": COUNTED}) + DONE).replace(
        b"\n", b"\r\n"
    ),
    "usage with the finish reason": lambda: chat({}, "stop", usage=COUNTED) + DONE,
    "a comment at the very end": lambda: chat({}, "stop", usage=COUNTED) + DONE + b": bye\n\n",
    "no empty line after [DONE]": lambda: chat({}, "stop", usage=COUNTED) + b"data: [DONE]",
    "no blank after the colon": lambda: chat({}, "stop", usage=COUNTED) + b"data:[DONE]\n\n",
    "usage in every event": lambda: (
        chat({"content": "x"}, usage={"prompt_tokens": 11, "completion_tokens": 1})
        + chat({}, "stop", usage=COUNTED)
        + DONE
    ),
    "null usage last": lambda: chat({}, "stop", usage=COUNTED) + chat({}, usage=None) + DONE,
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_a_good_end_is_done_and_has_its_usage(ending: Callable[[], bytes]) -> None:
    done, finished, usage, failure, _ = tail_verdict([chat({"content": "Hi"}), ending()])

    assert (done, finished, failure) == (True, True, None)
    assert usage == Usage(11, 5)


def test_a_cut_stream_is_not_done() -> None:
    assert tail_verdict([chat({"content": "Hi"})]) == (False, False, None, None, 1)


def test_a_server_without_done_has_at_least_finished() -> None:
    done, finished, *_ = tail_verdict([chat({"content": "Hi"}), chat({}, "stop")])

    assert (done, finished) == (False, True)


def test_text_about_the_end_is_not_the_end() -> None:
    told = (
        '"usage": {"prompt_tokens": 1, "completion_tokens": 1}, "finish_reason": "stop"\n\ndata: [DONE]\n\n'
    )

    assert tail_verdict([chat({"content": told})])[:3] == (False, False, None)


@pytest.mark.parametrize(
    "usage",
    [None, {}, [], "many", {"prompt_tokens": "1"}, {"prompt_tokens": -1}, {"completion_tokens": 3}],
)
def test_usage_that_cannot_be_read_is_none(usage: object) -> None:
    assert tail_verdict([event({"choices": [], "usage": usage}) + DONE])[2] is None


@pytest.mark.parametrize(("failing", "kind", "code"), FAILING.values(), ids=FAILING)
def test_an_error_in_mid_stream_is_seen_at_the_end(
    failing: bytes, kind: FailureKind, code: str | None
) -> None:
    """vLLM sends `[DONE]` after its error: without this a broken answer would count as a good one."""
    failure = tail_verdict([chat({"content": "Hi"}), failing, DONE])[3]

    if code == "bad_envelope":
        assert failure is None, "only what says so is an error"
    else:
        assert isinstance(failure, Failure)
        assert (failure.kind, failure.code) == (kind, code)


def test_text_about_errors_is_no_error() -> None:
    long_text = 'an error: {"error": {"message": "x"}}\n\nevent: error\n' * 500

    for end in range(80):
        assert tail_verdict([chat({"content": long_text + "x" * end}), DONE])[3] is None


def test_a_long_stream_is_kept_short() -> None:
    tail = Tail()
    for _ in range(2000):
        tail.feed(chat({"content": "word "}))
    tail.feed(b"data: " + b"x" * 100_000 + b"\n\n")
    assert sum(map(len, tail._pieces)) == KEPT_BYTES
    for _ in range(200):
        tail.feed(chat({"content": "word "}))

    assert tail.events == 2201
    assert sum(map(len, tail._pieces)) < KEPT_BYTES + 200


@pytest.mark.parametrize("size", [100, KEPT_BYTES, 100_000])
def test_no_split_makes_the_tail_see_further_back(size: int) -> None:
    usage = chat({}, "stop", usage=COUNTED)
    data = usage + chat({"content": "x" * KEPT_BYTES}) + DONE

    assert tail_verdict(pieces_of(data, range(0, len(data), size))) == (True, False, None, None, 3)


@given(st.lists(ANY_EVENT, max_size=40), st.integers(0, 9_000), CUTS)
@example([SPEAKING["text"]] * 30 + [ENDINGS["as OpenAI ends"]()], 8_100, list(range(10_000)))
def test_any_split_finds_the_same_end(parts: list[bytes], filling: int, cuts: list[int]) -> None:
    data = chat({"content": "data: x" * (filling // 7)}) + b"".join(parts)

    assert tail_verdict(pieces_of(data, cuts)) == tail_verdict([data])
