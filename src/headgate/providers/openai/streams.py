"""A stream in OpenAI's format as our chunks. Reasoning is left out: a chunk has no place for it."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from headgate.core.messages import Chunk
from headgate.core.sse import DONE, Event, Events
from headgate.core.wire_bodies import EMPTY, UNREADABLE, read_usage
from headgate.providers.openai.answers import Content, text_of, tool_calls_of
from headgate.providers.openai.errors import ErrorReader

_NULL: Final = msgspec.Raw(b"null")


class _Delta(msgspec.Struct):
    content: Content = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    refusal: str | None = None
    reasoning_content: msgspec.Raw = _NULL
    reasoning: msgspec.Raw = _NULL


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Piece(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = _NULL


_read_piece = msgspec.json.Decoder(_Piece).decode


class StreamReader:
    """Bytes into chunks. Raises what an error event, a broken event or a missing end means."""

    def __init__(self, errors: ErrorReader) -> None:
        self.done = False
        """`[DONE]` came: whatever follows is of no interest."""
        self.begun = False
        """Something was said, or thought."""
        self._errors = errors
        self._events = Events()
        self._finished = False

    @property
    def pending_bytes(self) -> int:
        return self._events.pending_bytes

    def feed(self, piece: bytes) -> Iterator[Chunk]:
        return self._read(self._events.feed(piece))

    def end(self) -> Iterator[Chunk]:
        """The server ended its answer. Without `[DONE]` a finish reason will do: some servers send no more."""
        yield from self._read(self._events.end())
        if not (self.done or self._finished):
            raise self._errors.stream_cut()

    def _read(self, events: list[Event]) -> Iterator[Chunk]:
        for event in events:
            if self.done:
                return
            chunk = self._chunk(event)
            if chunk is not None:
                yield chunk

    def _chunk(self, event: Event) -> Chunk | None:
        failure = event.failure()
        if failure is not None:
            raise self._errors.from_error(failure)
        if event.data == DONE:
            self.done = True
            return None
        if not event.data.strip():
            return None
        try:
            piece = _read_piece(event.data)
        except UNREADABLE as error:
            raise self._errors.bad_envelope(f"an event of its stream cannot be read: {error}") from None
        return self._from_piece(piece)

    def _from_piece(self, piece: _Piece) -> Chunk | None:
        choice = piece.choices[0] if piece.choices else _Choice()
        delta = choice.delta or _Delta()
        chunk = Chunk(
            text=text_of(delta.content) or "",
            tool_calls=tool_calls_of(delta.tool_calls, delta.function_call),
            refusal=delta.refusal,
            finish_reason=choice.finish_reason,
            usage=read_usage(piece.usage),
        )
        self.begun = self.begun or chunk.has_content or _thinks(delta)
        self._finished = self._finished or chunk.finish_reason is not None
        says = chunk.has_content or chunk.finish_reason is not None or chunk.usage is not None
        return chunk if says else None


def _thinks(delta: _Delta) -> bool:
    return any(bytes(raw) not in EMPTY for raw in (delta.reasoning_content, delta.reasoning))
