"""OpenAI's chat completions, the hub: requests read, answers and streams written and read."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from headgate.core.answer import BLANK, UNREASONED, Answer, Chunk, Content, Usage, text_of, tool_calls_of
from headgate.core.call import CHARS_PER_TOKEN, Call, Message, check_messages, input_tokens
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.formats.foreign_bodies import EMPTY, UNREADABLE, read_usage
from headgate.formats.reading import NoAnswer, read_fields, read_value
from headgate.formats.sse import DONE, Event, Events

NULL: Final = msgspec.Raw(b"null")
END: Final = b"data: [DONE]\n\n"
# Ends at the first character that is no blank, so long texts cost nothing.
BLANK_TEXT: Final = re.compile(rb'"(?:[ ]|\\[nrtf]|\\u00[aA]0|\xc2\xa0)*"|null|\[\]')
_encode: Final = msgspec.json.Encoder().encode

# ---- Requests -----------------------------------------------------------------------------------------------


class ChatRequest(msgspec.Struct, frozen=True):
    """A chat request as translating providers read it."""

    messages: Sequence[Message]
    params: Mapping[str, Any]
    """All other fields but those that concern the stream."""


def read_request(call: Call) -> ChatRequest:
    """Read once per call; `InvalidRequest` names the field that makes no sense."""
    if call.read is None:
        params = read_fields(call.fields)
        params.pop("stream_options", None)
        messages = params.pop("messages", ())
        check_messages(messages)
        call.read = ChatRequest(messages, params)
    request: ChatRequest = call.read
    return request


def wants_usage(call: Call) -> bool:
    """Whether the caller of a stream asked for its usage."""
    options = read_value(call.fields.get("stream_options"))
    return isinstance(options, Mapping) and options.get("include_usage") is True


def estimated_usage(call: Call, output_chars: int) -> Usage:
    """For upstreams that do not count."""
    return Usage(input_tokens(call), -(-output_chars // CHARS_PER_TOKEN), estimated=True)


# ---- Whole answers ------------------------------------------------------------------------------------------


class _Message(msgspec.Struct):
    content: msgspec.Raw = NULL
    tool_calls: msgspec.Raw = NULL
    refusal: msgspec.Raw = NULL
    function_call: msgspec.Raw = NULL
    audio: msgspec.Raw = NULL
    images: msgspec.Raw = NULL


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: msgspec.Raw = NULL
    error: msgspec.Raw = NULL


_read_completion: Final = msgspec.json.Decoder(_Completion).decode


def read_answer(body: bytes) -> Answer:
    """The answer in a body, which is kept as it is. Only the envelope is looked at; raises `NoAnswer`."""
    try:
        completion = _read_completion(body)
        if not body.isascii():
            body.decode()  # The texts are not read here, and a client could not read them either.
    except UNREADABLE as error:
        raise NoAnswer(f"its body is no chat completion: {error}") from None
    if not completion.choices:
        raise NoAnswer("its body holds no answer")
    if completion.error is not NULL and bytes(completion.error) not in EMPTY:
        raise NoAnswer("its body is an error")
    blank = True
    for choice in completion.choices:
        message = choice.message
        if (
            choice.finish_reason not in UNREASONED
            or BLANK_TEXT.fullmatch(memoryview(message.content)) is None
        ):
            blank = False
            break
        others = (message.tool_calls, message.refusal, message.function_call, message.audio, message.images)
        if any(value is not NULL and bytes(value) not in EMPTY for value in others):
            blank = False
            break
    return Answer(
        body=body,
        usage=read_usage(completion.usage),
        flaw=BLANK if blank else None,
        finish_reason=completion.choices[0].finish_reason,
    )


def write_answer(
    call: Call,
    *,
    content: str | None = None,
    tool_calls: Sequence[Mapping[str, Any]] = (),
    refusal: str | None = None,
    reasoning: str | None = None,
    thinking_blocks: Sequence[Mapping[str, Any]] = (),
    finish_reason: str | None = None,
    usage: Usage | None = None,
    usage_details: Mapping[str, Any] | None = None,
) -> Answer:
    """What a provider said in another format, or in none. Usage is estimated where it was not told."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if refusal is not None:
        message["refusal"] = refusal
    if reasoning:
        message["reasoning_content"] = reasoning
    if thinking_blocks:
        message["thinking_blocks"] = list(thinking_blocks)
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    usage = usage or estimated_usage(call, len(content or ""))
    body = {
        "id": f"chatcmpl-{call.id}",
        "object": "chat.completion",
        "created": int(call.created),
        "model": call.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason or "stop"}],
        "usage": usage_body(usage, usage_details),
    }
    says = tool_calls or refusal or (content and content.strip())
    return Answer(
        body=_encode(body),
        usage=usage,
        flaw=None if says or finish_reason not in UNREASONED else BLANK,
        finish_reason=finish_reason,
    )


def usage_body(usage: Usage, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        **({"estimated": True} if usage.estimated else {}),
        **(details or {}),
    }


# ---- Streams, written -----------------------------------------------------------------------------------------


class StreamWriter:
    """Chunks of one answer as server-sent events."""

    __slots__ = ("_call", "_chars", "_details", "_first", "_usage")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._first = True
        self._chars = 0
        self._usage: Usage | None = None
        self._details: Mapping[str, Any] | None = None

    def write(self, chunk: Chunk, details: Mapping[str, Any] | None = None) -> bytes:
        """Nothing for a chunk that only counts. `details` are those of its usage."""
        if chunk.usage is not None:
            self._usage, self._details = chunk.usage, details
        delta: dict[str, Any] = {}
        if chunk.reasoning:
            delta["reasoning_content"] = chunk.reasoning
        if chunk.thinking_blocks:
            delta["thinking_blocks"] = list(chunk.thinking_blocks)
        if chunk.text:
            delta["content"] = chunk.text
            self._chars += len(chunk.text)
        if chunk.refusal is not None:
            delta["refusal"] = chunk.refusal
        if chunk.tool_calls:
            delta["tool_calls"] = list(chunk.tool_calls)
        if not delta and chunk.finish_reason is None:
            return b""
        if self._first:
            self._first = False
            delta = {"role": "assistant", **delta}
        return self._event([{"index": 0, "delta": delta, "finish_reason": chunk.finish_reason}])

    def end(self) -> bytes:
        """The usage, where the caller asked for it, and the end marker."""
        if not wants_usage(self._call):
            return END
        usage = self._usage or estimated_usage(self._call, self._chars)
        return self._event([], usage_body(usage, self._details)) + END

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        call = self._call
        body: dict[str, Any] = {
            "id": f"chatcmpl-{call.id}",
            "object": "chat.completion.chunk",
            "created": int(call.created),
            "model": call.model,
            "choices": choices,
        }
        if usage is not None:
            body["usage"] = usage
        return b"data: %b\n\n" % _encode(body)


# ---- Streams, read --------------------------------------------------------------------------------------------


class _Delta(msgspec.Struct):
    content: Content = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    thinking_blocks: list[dict[str, Any]] | None = None


class _PieceChoice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Piece(msgspec.Struct):
    choices: list[_PieceChoice] | None = None
    usage: msgspec.Raw = NULL


_read_piece: Final = msgspec.json.Decoder(_Piece).decode


class StreamReader:
    """The bytes of a stream as chunks of its first choice. Raises what an error event or a broken one means."""

    __slots__ = ("_events", "done")

    def __init__(self) -> None:
        self._events = Events()
        self.done = False
        """The end marker came: what follows is of no interest."""

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        """One by one: the chunks in front of what fails come before the failure."""
        return self._read(self._events.feed(piece))

    def end(self) -> Iterator[Chunk]:
        """What stood at the end without its empty line."""
        return self._read(self._events.end())

    def _read(self, events: Iterable[Event]) -> Iterator[Chunk]:
        for event in events:
            if self.done:
                return
            if event.data == DONE:
                self.done = True
            elif (chunk := _chunk(event)) is not None:
                yield chunk


def _chunk(event: Event) -> Chunk | None:
    failure = event.failure()
    if failure is not None:
        raise ProviderFailure(failure)
    if not event.data.strip():
        return None
    try:
        piece = _read_piece(event.data)
    except UNREADABLE as error:
        message = f"an event of the stream cannot be read: {error}"
        raise ProviderFailure(
            Failure(kind=FailureKind.TRANSIENT, message=message, code="bad_envelope")
        ) from None
    choice = piece.choices[0] if piece.choices else _PieceChoice()
    delta = choice.delta or _Delta()
    reasoning = delta.reasoning_content or delta.reasoning
    chunk = Chunk(
        text=text_of(delta.content) or "",
        tool_calls=tool_calls_of(delta.tool_calls, delta.function_call),
        refusal=delta.refusal,
        reasoning=reasoning if isinstance(reasoning, str) else "",
        thinking_blocks=delta.thinking_blocks or (),
        finish_reason=choice.finish_reason,
        usage=read_usage(piece.usage),
    )
    says = chunk.has_content or chunk.reasoning or chunk.thinking_blocks
    return chunk if says or chunk.finish_reason is not None or chunk.usage is not None else None
