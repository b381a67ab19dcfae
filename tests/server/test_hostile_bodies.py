"""Bodies that want to break the gateway: each is a 4xx in OpenAI's shape, or served, and nobody else notices.

Asked of a provider that gets bodies as they came, and of those that must read them first.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from conftest import Figure
from contracts.provider_stage import Part
from providers.stubs.openai import OpenAIStub, text_completion
from server.http.front_stage import Answer, Play, post
from server.stage import House, opened
from server.upstreams import ASKED, CHAT, COMPLETIONS, EMBEDDINGS, one_model, sent, stub_of, upstream_of

MB: Final = 1_000_000
JSON: Final = "Content-Type: application/json"
LONGEST_STALL: Final = 8.0
"""In times that this machine needs, as it is now, to hash the body once (50 ms on a quiet core)."""
PROVIDERS: Final = ("openai", "anthropic", "ollama", "bedrock", "simulated")
PARTS: Final = {CHAT: Part.ANSWER, COMPLETIONS: Part.ANSWER, EMBEDDINGS: Part.EMBEDDINGS}
FIELD: Final = {CHAT: b"messages", COMPLETIONS: b"prompt", EMBEDDINGS: b"input"}


class Stall:
    """The longest time for which the loop did nothing else, as this thread's own: other processes do not count."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        async def tick() -> None:
            last = time.thread_time()
            while True:
                await asyncio.sleep(0.001)
                now = time.thread_time()
                self.longest_s = max(self.longest_s, now - last)
                last = now

        ticking = asyncio.create_task(tick())
        try:
            yield
        finally:
            ticking.cancel()


def a_4xx(answer: Answer) -> bool:
    """In OpenAI's shape, and final."""
    if not 400 <= answer.status < 500:
        return False
    told = json.loads(answer.body)["error"]
    return set(told) == {"message", "type", "param", "code"} and answer.headers["x-should-retry"] == "false"


@asynccontextmanager
async def house_of(provider: str, path: str) -> AsyncIterator[House]:
    part = PARTS[path] if provider != "simulated" else Part.ANSWER
    if provider == "anthropic":
        part = Part.ANSWER  # It embeds nothing.
    passes_text = (provider, path) == ("openai", COMPLETIONS)
    # Whoever is answered here has asked for it: no breaker shall answer in the stub's stead.
    async with (
        OpenAIStub(text_completion()) if passes_text else stub_of(provider, part) as stub,
        opened(one_model(upstream_of(provider, stub, part, breaker=False))) as house,
    ):
        yield house


def body_with(path: str, asked: bytes, more: bytes = b"") -> bytes:
    return b'{"model": "m", "%b": %b%b}' % (FIELD[path], asked, more)


def said(content: bytes) -> dict[str, bytes]:
    """The same text on every route."""
    return {
        CHAT: b'[{"role": "user", "content": %b}]' % content,
        COMPLETIONS: content,
        EMBEDDINGS: b"[%b]" % content,
    }


NOT_JSON: Final = {
    "cut": b'{"model": "m", "messages": [{"role": "us',
    "nan": b'{"model": "m", "messages": [], "temperature": NaN}',
    "infinity": b'{"model": "m", "messages": [], "temperature": -Infinity}',
    "two values": b'{"model": "m"} {"model": "m"}',
    "byte order mark": b'\xef\xbb\xbf{"model": "m"}',
    "utf-16": '{"model": "m"}'.encode("utf-16"),
    "comments": b'{"model": "m" /* hello */}',
    "single quotes": b"{'model': 'm'}",
    "trailing comma": b'{"model": "m",}',
    "control character": b'{"model": "m\n"}',
    "bare word": b'{"model": m}',
    "nul": b"\0" * 100,
    "deep list": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "deep inside": b'{"model": "m", "messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "invalid utf-8 name": b'{"model": "m", "\xff\xfe": 1}',
    "invalid utf-8 model": b'{"model": "\xff"}',
    "lone surrogate model": rb'{"model": "\ud800", "messages": []}',
    "bad escape": rb'{"model": "\x41"}',
    "1e999 as the model": b'{"model": 1e999}',
}


@pytest.mark.parametrize("provider", ["openai", "simulated"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_what_is_no_json_is_400(play: Play, provider: str, path: str) -> None:
    async def scene() -> None:
        async with house_of(provider, path) as house:
            for name, body in NOT_JSON.items():
                answer = await sent(house, post(body, path, JSON))
                assert answer.status == 400, (name, answer)
                assert a_4xx(answer), name
                if "surrogate" in name:
                    assert rb"\\ud800 is half a character" in answer.body, answer

    play(scene)


ODD_TEXTS: Final = {
    "lone surrogate": rb'"\ud800"',
    "reversed pair": rb'"\ude00\ud83d"',
    "invalid utf-8": b'"\xff\xfe"',
    "overlong utf-8": b'"\xc0\xaf"',
    "utf-8 surrogate": b'"\xed\xa0\x80"',
    "cut utf-8": b'"\xe4"',
}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_what_is_no_text_is_400(play: Play, provider: str, path: str) -> None:
    """Also where the body passes as it came: an upstream that chokes on it would look ill to everybody."""

    async def scene() -> None:
        async with house_of(provider, path) as house:
            for name, content in ODD_TEXTS.items():
                answer = await sent(house, post(body_with(path, said(content)[path]), path, JSON))
                assert a_4xx(answer), (name, answer)

    play(scene)


@pytest.mark.parametrize("provider", ["openai", "ollama"])
def test_of_two_equal_names_the_gate_and_the_upstream_read_the_same(play: Play, provider: str) -> None:
    """The last one counts, and only that one travels: nobody is billed for one model and served by another."""

    async def scene() -> None:
        async with (
            stub_of(provider, Part.ANSWER) as stub,
            opened(one_model(upstream_of(provider, stub, Part.ANSWER))) as house,
        ):
            messages = b'[{"role": "user", "content": "first"}]'
            body = (
                b'{"model": "nobody", "messages": %b, "model": "m", "messages": [{"role": "user", "content": "last"}]}'
                % messages
            )
            answer = await sent(house, post(body, CHAT, JSON))
            assert answer.status == 200
            [seen] = stub.requests  # type: ignore[attr-defined]
            assert seen.raw.count(b'"messages"') == seen.raw.count(b'"model"') == 1
            assert seen.body["messages"][0]["content"] == "last"
            assert (
                await sent(house, post(b'{"model": "m", "model": "nobody", "messages": %b}' % messages, CHAT))
            ).status == 404

    play(scene)


# ---- Wrong kinds of values ----------------------------------------------------------------------------------------

WRONG: Final[tuple[Any, ...]] = (
    None,
    True,
    7,
    -1,
    1.5,
    "text",
    "",
    [],
    [[]],
    {},
    [{}],
    {"a": {"b": [1]}},
    [None],
    10**30,
    1e300,
)
RIGHT: Final = {("stream", True), ("input", "text")}
"""Nothing is wrong with these; the stubs just play another part."""
FIELDS: Final = {
    CHAT: (
        "model", "messages", "stream", "temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "n",
        "tools", "tool_choice", "response_format", "stream_options", "service_tier", "seed", "user", "metadata",
        "logprobs", "reasoning_effort", "parallel_tool_calls", "functions", "modalities",
    ),
    COMPLETIONS: ("model", "prompt", "stream", "max_tokens", "suffix", "echo", "best_of", "stop"),
    EMBEDDINGS: ("model", "input", "dimensions", "encoding_format", "user", "stream"),
}  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS])
def test_no_kind_of_value_in_any_field_is_a_5xx(play: Play, provider: str, path: str) -> None:
    """Served or refused, but never broken by it; and no upstream is thought ill because of it."""

    async def scene() -> None:
        async with house_of(provider, path) as house:
            bad = []
            for name in FIELDS[path]:
                for value in WRONG:
                    if any(name == right and value is kind for right, kind in RIGHT):
                        continue
                    if (
                        (provider, name) == ("openai", "input")
                        and isinstance(value, list)
                        and len(value) == 1
                    ):
                        continue  # Its stub has two vectors for everything.
                    body = json.dumps({**ASKED[path], name: value}).encode()
                    answer = await sent(house, post(body, path, JSON, "X-Headgate-Timeout: 5"))
                    if answer.status != 200 and not a_4xx(answer):
                        bad.append((name, value, answer.status, answer.body[:200]))
            assert bad == []
            assert house.all_free

    play(scene)


_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {}}}
MESSAGES: Final = (
    {"role": None}, {"role": 7}, {"role": "nobody", "content": "x"}, {"role": "user"}, {"role": "user", "content": 7},
    {"role": "user", "content": [7]}, {"role": "user", "content": [{}]}, {"role": "user", "content": [{"type": 7}]},
    {"role": "user", "content": [{"type": "text"}]}, {"role": "user", "content": [{"type": "text", "text": 7}]},
    {"role": "user", "content": [{"type": "image_url"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": 7}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,???"}}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
    {"role": "user", "content": [{"type": "file", "file": {}}]},
    {"role": "user", "content": [{"type": "input_audio", "input_audio": "x"}]},
    {"role": "assistant", "tool_calls": 7}, {"role": "assistant", "tool_calls": [7]},
    {"role": "assistant", "tool_calls": [{}]}, {"role": "assistant", "tool_calls": [{"function": 7}]},
    {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{"}}]},
    {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "[1]"}}]},
    {"role": "assistant", "tool_calls": [{"id": 1, "type": "function", "function": {"name": 1, "arguments": 1}}]},
    {"role": "assistant", "content": None, "refusal": 7}, {"role": "tool"}, {"role": "tool", "tool_call_id": 7},
    {"role": "tool", "tool_call_id": "unknown", "content": "x"}, {"role": "system", "content": {}},
    {"role": "system", "content": []}, {"role": "developer", "content": None}, {"role": "user", "content": "x", "name": 7},
    {"role": "function", "content": "x"},
)  # fmt: skip
TOOLS: Final = (
    [_TOOL, _TOOL], [{"type": "function"}], [{"type": "function", "function": {}}], [{"function": {"name": 7}}],
    [{"type": "custom"}], [{"type": "function", "function": {"name": "f", "parameters": 7}}],
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}],
    [{"type": "function", "function": {"name": "f", "description": 7}}], [_TOOL, 7],
)  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_message_or_tool_is_a_5xx(play: Play, provider: str) -> None:
    async def scene() -> None:
        async with house_of(provider, CHAT) as house:
            bodies: list[dict[str, Any]] = [{"messages": [message]} for message in MESSAGES]
            bodies += [{"messages": [ASKED[CHAT]["messages"][0], message]} for message in MESSAGES]
            bodies += [{"tools": tools} for tools in TOOLS]
            bodies += [
                {"tools": [_TOOL], "tool_choice": choice} for choice in (7, {}, "f", {"type": "function"})
            ]
            bad = []
            for fields in bodies:
                body = json.dumps({**ASKED[CHAT], **fields}).encode()
                answer = await sent(house, post(body, CHAT, JSON, "X-Headgate-Timeout: 5"))
                if answer.status != 200 and not a_4xx(answer):
                    bad.append((fields, answer.status, answer.body[:200]))
            assert bad == []

    play(scene)


# ---- Size ---------------------------------------------------------------------------------------------------------


def _heavy() -> dict[str, bytes]:
    size = 20 * MB
    return {
        "one text of 20 MB": b'[{"role": "user", "content": "%b"}]' % (b"a" * size),
        "20 MB of escapes": b'[{"role": "user", "content": "%b"}]' % (rb"\u00e4" * (size // 6)),
        "20 MB beyond ASCII": b'[{"role": "user", "content": "%b"}]' % ("ä".encode() * (size // 2)),
        "6 million lists": b"[%b[]]" % (b"[]," * (size // 3)),
        "6 million objects": b"[%b{}]" % (b"{}," * (size // 3)),
        "10 million numbers": b"[%b1]" % (b"1," * (size // 2)),
        "a number of 20 MB": b"[%b]" % (b"1" * size),
        "a fraction of 20 MB": b"[0.%b]" % (b"1" * size),
        "a million messages": b"[%b{}]" % (b'{"role":"user"},' * (size // 16)),
        "20 MB of spaces": b"[%b]" % (b" " * size),
        "a million names": b'[{"role": "user", "content": "x", %b"z": 1}]'
        % b"".join(b'"%d": 1,' % at for at in range(MB)),
    }


@pytest.mark.parametrize("provider", ["openai", "ollama", "bedrock"])
def test_heavy_bodies_do_not_stop_the_others(play: Play, figure: Figure, provider: str) -> None:
    worst: list[tuple[float, str]] = []

    def hashing_s() -> float:
        before = time.thread_time()
        hashlib.sha256(bytes(20 * MB)).digest()
        return time.thread_time() - before

    async def scene() -> None:
        async with house_of(provider, CHAT) as house:
            for name, messages in _heavy().items():
                request = post(body_with(CHAT, messages), CHAT, JSON, "X-Headgate-Timeout: 10")
                stalls = []
                for _ in range(10):  # What our code stops, it stops each time; a busy machine does not.
                    async with (stall := Stall()).watched():
                        answer = await sent(house, request)
                    assert answer.status == 200 or a_4xx(answer), (name, answer.status, answer.body[:200])
                    stalls.append(stall.longest_s / hashing_s())
                    if stalls[-1] < LONGEST_STALL:
                        break
                worst.append((min(stalls), name))

    play(scene)
    longest, name = max(worst)
    figure(
        f"heavy bodies, {provider}: longest stall",
        f"{longest:.1f} hashes of 20 MB ({name}; ≤ {LONGEST_STALL:g})",
    )
    assert longest <= LONGEST_STALL, sorted(worst)
