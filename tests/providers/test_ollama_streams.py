"""Streamed answers and errors: lines in, chunks out, and the class of what goes wrong."""

import asyncio

import msgspec
import pytest
from providers.http_stage import KEY, ask
from providers.ollama_stage import STAGE, ollama_stage
from providers.stubs.ollama import (
    ERROR_LINE,
    FIRST_LINE,
    NDJSON,
    calls,
    documented,
    error,
    last,
    line,
    lines,
)
from providers.stubs.scripted import CUT, HANG, Reply, ScriptedServer

from headgate.core.answer import Chunk, Usage
from headgate.core.failures import FailureKind
from headgate.core.ports.provider import Provider
from headgate.core.problems import InvalidSettings
from headgate.core.timeouts import Timeouts
from headgate.providers.ollama import read_options
from headgate.providers.ollama.options import server_url

HELLO = (line("Hel"), line("lo! ✓"))


def test_text_comes_piece_by_piece_and_the_end_says_why_and_how_much() -> None:
    *pieces, end, counted = STAGE.chunks(lines(*HELLO, last()))

    assert [piece.text for piece in pieces] == ["Hel", "lo! ✓"]
    assert (end.finish_reason, end.has_content) == ("stop", False)
    assert counted == Chunk(usage=Usage(26, 282))


def test_a_stream_is_written_as_chunks_of_a_chat_completion() -> None:
    """Lines that say nothing make no event, and usage is only for those that asked for it."""

    async def act(provider: Provider, server: ScriptedServer) -> list[bytes]:
        return [piece async for piece in provider.stream(ask())]

    thinking = line(message={"thinking": "Let me see…"})
    *events, end = STAGE.play(act, lines(line(), thinking, *HELLO, line(), last()))

    read = [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]
    assert end == b"data: [DONE]\n\n"
    assert [event["choices"][0] for event in read] == [
        {"index": 0, "delta": delta, "finish_reason": reason}
        for delta, reason in (
            ({"role": "assistant", "reasoning_content": "Let me see…"}, None),
            ({"content": "Hel"}, None),
            ({"content": "lo! ✓"}, None),
            ({}, "stop"),
        )
    ]
    assert {(event["id"], event["object"], event["model"]) for event in read} == {
        ("chatcmpl-r1", "chat.completion.chunk", "public")
    }


def test_usage_that_was_not_counted_is_estimated_at_the_end_of_a_stream() -> None:
    *_, counted = STAGE.chunks(lines(*HELLO, last(prompt_eval_count=None)))

    assert counted.usage == Usage(1, 2, estimated=True)


@pytest.mark.parametrize("piece_bytes", [1, 7, 64])
def test_the_packets_may_fall_anywhere(piece_bytes: int) -> None:
    whole = lines(*HELLO, calls(("a", {"x": "ü"})), last())
    cut_up = Reply(whole.body, headers=whole.headers, piece_bytes=piece_bytes)

    assert STAGE.chunks(cut_up) == STAGE.chunks(whole)


def test_thinking_is_reasoning_and_no_content() -> None:
    thinking = [line(message={"thinking": text}) for text in ("Let me ", "see…")]
    first, second, end, _ = STAGE.chunks(lines(*thinking, last()))

    assert [first, second] == [Chunk(reasoning="Let me "), Chunk(reasoning="see…")]
    assert (end.finish_reason, end.has_content) == ("stop", False)


def test_a_line_may_hold_a_thought_and_a_word() -> None:
    chunk, *_ = STAGE.chunks(lines(line("42", message={"thinking": "so it is"}), last()))

    assert chunk == Chunk(reasoning="so it is", text="42")


def test_tool_calls_are_numbered_over_all_lines() -> None:
    chunks = STAGE.chunks(lines(calls(("a", {"x": 1})), calls(("b", {})), last()))

    told = [call for chunk in chunks for call in chunk.tool_calls]
    assert [(call["index"], call["function"]["name"]) for call in told] == [(0, "a"), (1, "b")]
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["tool_calls"]


def test_an_answer_without_its_done_line_is_cut() -> None:
    """Also when nobody streams: the words may be the first half of a sentence."""
    text, failure = STAGE.stream_failure(lines(*HELLO))

    assert (text, failure.kind, failure.code) == ("Hello! ✓", FailureKind.TRANSIENT, "stream_cut")
    assert STAGE.failure(lines(*HELLO)).code == "stream_cut"


def test_a_connection_that_breaks_is_transient() -> None:
    text, failure = STAGE.stream_failure(lines(*HELLO, ending=CUT))

    assert (text, failure.kind) == ("Hello! ✓", FailureKind.TRANSIENT)
    assert STAGE.failure(lines(*HELLO, ending=CUT)).kind is FailureKind.TRANSIENT


def test_an_error_line_in_the_middle_is_transient() -> None:
    text, failure = STAGE.stream_failure(documented(FIRST_LINE, ERROR_LINE))

    assert (text, failure.kind) == ("The", FailureKind.TRANSIENT)
    assert "an error was encountered while running the model" in failure.message
    assert STAGE.failure(lines({"error": "no", "done": True})).kind is FailureKind.TRANSIENT


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"<html>", headers={"content-type": "text/html"}),
        Reply(b'{"done": tr\n', headers=NDJSON),
        Reply(b'{"message": {}}\n', headers=NDJSON),
        Reply(b"Ollama is running", headers={"content-type": "text/plain"}),
    ],
)
def test_what_is_no_answer_is_a_broken_envelope(reply: Reply) -> None:
    failure = STAGE.failure(reply)

    assert (failure.kind, failure.code) == (FailureKind.TRANSIENT, "bad_envelope")


def test_a_model_that_hangs_is_noticed_although_nobody_streams() -> None:
    """That is why whole answers are streamed inside."""
    failure = ollama_stage(Timeouts(idle_s=0.1)).failure(lines(*HELLO, ending=HANG))

    assert (failure.kind, failure.timed_out) == (FailureKind.TRANSIENT, True)


def test_a_tool_call_may_be_written_in_silence() -> None:
    tool = {"type": "function", "function": {"name": "a", "parameters": {}}}

    async def act(provider: Provider, server: ScriptedServer) -> bool:
        call = asyncio.ensure_future(provider.send(ask(tools=[tool])))
        done, _ = await asyncio.wait([call], timeout=0.3)
        call.cancel()
        await asyncio.wait([call])
        return bool(done)

    assert not ollama_stage(Timeouts(idle_s=0.05)).play(act, lines(*HELLO, ending=HANG))


def test_silence_at_the_start_of_a_stream_is_a_timeout() -> None:
    _, failure = ollama_stage(Timeouts(first_token_s=0.1)).stream_failure(Reply(silent=True))

    assert (failure.kind, failure.timed_out) == (FailureKind.TRANSIENT, True)


def test_a_stream_that_is_left_is_dropped_at_once() -> None:
    assert STAGE.seconds_until_left(lines(*HELLO, ending=HANG), streamed=True) < 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, FailureKind.REJECTED),
        (401, FailureKind.MISCONFIGURED),
        (403, FailureKind.MISCONFIGURED),
        (404, FailureKind.MISCONFIGURED),
        (429, FailureKind.THROTTLED),
        (500, FailureKind.TRANSIENT),
        (502, FailureKind.TRANSIENT),
        (503, FailureKind.TRANSIENT),
    ],
)
def test_each_error_has_its_class(status: int, kind: FailureKind) -> None:
    failure = STAGE.failure(error(status, "the reason", headers={"retry-after": "3"}))

    assert (failure.kind, failure.status, failure.retry_after_s) == (kind, status, 3.0)
    assert failure.message.startswith(f"{status} from http://127.0.0.1:")
    assert "the reason" in failure.message


def test_a_missing_model_says_how_to_get_it() -> None:
    failure = STAGE.failure(error(404, "model 'gemma3:4b' not found"))

    assert failure.code == "model_not_found"
    assert failure.message.endswith("ollama pull gemma3:4b")


def test_a_wrong_path_is_not_a_missing_model() -> None:
    wrong = Reply(b"404 page not found", status=404, headers={"content-type": "text/plain"})
    failure = STAGE.failure(wrong)

    assert (failure.kind, failure.code) == (FailureKind.MISCONFIGURED, None)
    assert "check base_url" in failure.message


def test_no_key_is_ever_told() -> None:
    stage = ollama_stage(headers={"Authorization": f"Bearer {KEY}"})
    failure = stage.failure(error(401, f"no such key: {KEY}"))

    assert KEY not in failure.message
    assert KEY not in repr(read_options({"headers": {"Authorization": KEY}}))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("0.0.0.0:11434", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        (":8080", "http://127.0.0.1:8080"),
        ("gpu-box", "http://gpu-box:11434"),
        ("gpu-box:1234/ollama", "http://gpu-box:1234/ollama"),
        ("http://gpu-box", "http://gpu-box"),
        ("https://ollama.example", "https://ollama.example"),
        ("[::1]", "http://[::1]:11434"),
        ("[::]:9000", "http://[::1]:9000"),
        (" 10.0.0.5 ", "http://10.0.0.5:11434"),
    ],
)
def test_the_server_may_be_written_as_for_ollamas_own_tools(host: str, url: str) -> None:
    assert server_url(host) == url
    assert read_options({"base_url": host}).base_url == url


def test_all_mistakes_in_the_options_are_told_together() -> None:
    with pytest.raises(InvalidSettings) as caught:
        read_options(
            {"base_url": "ftp://x", "keep_alive": "long", "options": {"num_ctxt": 1}, "headers": {"a": 1}}
        )

    assert [problem.path for problem in caught.value.problems] == [
        "base_url",
        "keep_alive",
        "options.num_ctxt",
        "headers.a",
    ]
    assert "did you mean 'num_ctx'" in str(caught.value)


@pytest.mark.parametrize("keep_alive", ["5m", "1h30m", "-1s", "0", 0, -1, 300, 1.5, None])
def test_every_way_to_write_keep_alive_is_taken(keep_alive: str | float | None) -> None:
    assert read_options({"keep_alive": keep_alive}).keep_alive == keep_alive


@pytest.mark.parametrize(
    "given", [{"keep_alive": "-1"}, {"keep_alive": True}, {"base_url": 3}, {"hots": "x"}]
)
def test_a_wrong_option_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings):
        read_options(given)
