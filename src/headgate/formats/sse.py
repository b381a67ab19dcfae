"""Server-sent events of a stream in OpenAI's format: where its first content is, and how it ended.

Fed with the bytes as they come, split anywhere. Until the first content every event is read; afterwards only the
last few kilobytes are kept and nothing is read before the end.
"""

import re
from collections import deque
from typing import Final, NamedTuple

import msgspec

from headgate.core.answer import Usage
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.formats.foreign_bodies import EMPTY, UNREADABLE, error_inside, read_error, read_usage

DONE: Final = b"[DONE]"
MOST_EVENT_BYTES: Final = 16 * 1024 * 1024
MOST_OPENING_BYTES: Final = 1024 * 1024
"""What may come of a stream before its first content: comments, roles and signs of life."""
KEPT_BYTES: Final = 8 * 1024
"""How much of a stream's end is looked at. The event with the usage has less than 2 KiB."""
_NULL: Final = msgspec.Raw(b"null")
_FINISHED: Final = re.compile(rb'"finish_reason": *"')


class Event(NamedTuple):
    """One event: its name (mostly none) and its data."""

    name: bytes
    data: bytes

    def failure(self) -> Failure | None:
        """What went wrong, where this event says so."""
        if self.name == b"error":
            return (error_inside(self.data) or read_error(self.data)).failure_inside()
        error = error_inside(self.data) if b'"error"' in self.data else None
        return None if error is None else error.failure_inside()


class Events:
    """Bytes into events. Lines end with LF or CRLF; comments and fields without a meaning here are left out."""

    __slots__ = ("_begun", "_begun_bytes", "_data", "_data_bytes", "_name")

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._name = b""

    @property
    def clean(self) -> bool:
        """Nothing of an event has come that is not complete."""
        return not (self._begun or self._data or self._name)

    @property
    def pending_bytes(self) -> int:
        """How much of the next event's data has come. A comment that is under way is none."""
        begun = self._begun_bytes if self._begun and not self._begun[0].startswith(b":") else 0
        return self._data_bytes + begun

    def feed(self, piece: bytes) -> list[Event]:
        """The events that this piece completes. One that never ends is a `ProviderFailure`."""
        *lines, rest = piece.split(b"\n")
        if lines and self._begun:
            lines[0] = b"".join((*self._begun, lines[0]))
            self._begun.clear()
            self._begun_bytes = 0
        events = [event for line in lines if (event := self._take(line)) is not None]
        if rest:
            self._begun.append(rest)
            self._begun_bytes += len(rest)
            self._check_size()
        return events

    def end(self) -> list[Event]:
        """What stood at the end without its empty line: llama.cpp ends so with `[DONE]`."""
        return self.feed(b"\n\n")

    def _take(self, line: bytes) -> Event | None:
        line = line.removesuffix(b"\r")
        if not line:
            return self._complete()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._data_bytes += len(value)
            self._check_size()
        elif field == b"event":
            self._name = value
        elif field == b"error":
            # llama.cpp of 2025 and before made the name of the event the name of the field.
            self._name = b"error"
            self._data.append(value)
            self._data_bytes += len(value)
        return None

    def _complete(self) -> Event | None:
        event = Event(self._name, b"\n".join(self._data)) if self._data else None
        self._name = b""
        self._data = []
        self._data_bytes = 0
        return event

    def _check_size(self) -> None:
        if self._data_bytes + self._begun_bytes > MOST_EVENT_BYTES:
            raise _broken(f"an event of the stream is longer than {MOST_EVENT_BYTES} bytes")


class _Delta(msgspec.Struct):
    content: msgspec.Raw = _NULL
    tool_calls: msgspec.Raw = _NULL
    refusal: msgspec.Raw = _NULL
    function_call: msgspec.Raw = _NULL
    reasoning_content: msgspec.Raw = _NULL
    reasoning: msgspec.Raw = _NULL
    thinking_blocks: msgspec.Raw = _NULL
    audio: msgspec.Raw = _NULL
    images: msgspec.Raw = _NULL


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: msgspec.Raw = _NULL


class _Piece(msgspec.Struct):
    choices: list[_Choice] | None = None


class _Counted(msgspec.Struct):
    usage: msgspec.Raw = _NULL


_read_piece = msgspec.json.Decoder(_Piece).decode
_read_counted = msgspec.json.Decoder(_Counted).decode


class Opening:
    """What comes of a stream before it says anything: bounded, because it is kept until the stream may be handed out."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def take(self, size_bytes: int, *, begun: bool = False, pending_bytes: int = 0) -> None:
        """So much more has come. `begun`: with something said, or thought; `pending_bytes` of it may become that yet."""
        self._bytes += size_bytes
        if not begun and self._bytes - pending_bytes > MOST_OPENING_BYTES:
            raise _broken(f"more than {MOST_OPENING_BYTES} bytes came before the stream's first content")


class FirstContent:
    """Waits for the first content: text, a tool call, a refusal, reasoning. Roles, usage and comments are none."""

    __slots__ = ("_events", "_opening", "done")

    def __init__(self) -> None:
        self._events = Events()
        self._opening = Opening()
        self.done = False
        """The end marker came, and no content before it."""

    def feed(self, piece: bytes) -> bool:
        """Whether content has come. An error that comes before it, or too much else, is raised as a `ProviderFailure`."""
        one_event = piece[:7] == b"data: {" and piece[-2:] == b"\n\n" and piece.count(b"\n") == 2
        # As most pieces are: read without a look at each line.
        if one_event and b'"error"' not in piece and self._events.clean and _says(piece[6:-2]):
            return True
        events = self._events.feed(piece)
        for event in events:
            if _has_content(event):
                return True
        self.done = self.done or any(event.data == DONE for event in events)
        self._opening.take(len(piece), pending_bytes=self._events.pending_bytes)
        return False


def _has_content(event: Event) -> bool:
    failure = event.failure()
    if failure is not None:
        raise ProviderFailure(failure)
    return bool(event.data.strip()) and event.data != DONE and _says(event.data)


def _says(data: bytes) -> bool:
    """Whether an event's data has content."""
    try:
        choices = _read_piece(data).choices
    except msgspec.ValidationError:
        return False  # JSON of another shape: a server's own idea of a sign of life.
    except UNREADABLE:
        raise _broken("an event of the stream is not JSON") from None
    for choice in choices or ():
        for value in (choice.text,) if choice.delta is None else msgspec.structs.astuple(choice.delta):
            if value is not _NULL and bytes(value) not in EMPTY:
                return True
    return False


class Tail:
    """The end of a stream. Takes every piece at next to no cost and is read when the last one has come."""

    __slots__ = ("_edge", "_kept_bytes", "_pieces", "events")

    def __init__(self) -> None:
        self.events = 0
        """About how many events there were: text that holds `data:` counts, too."""
        self._edge = b""
        self._pieces: deque[bytes] = deque()
        self._kept_bytes = 0

    def feed(self, piece: bytes) -> None:
        self.events += piece.count(b"data:")
        if self._edge or not piece.endswith(b"\n"):
            self._mind_edge(piece)
        if len(piece) > KEPT_BYTES:
            piece = piece[-KEPT_BYTES:]
        pieces = self._pieces
        pieces.append(piece)
        self._kept_bytes += len(piece)
        while self._kept_bytes - len(pieces[0]) >= KEPT_BYTES:
            self._kept_bytes -= len(pieces.popleft())

    @property
    def done(self) -> bool:
        """Whether `[DONE]` came."""
        text = self._text()
        at = text.rfind(DONE)
        return at >= 0 and _data_around(text, at) == DONE

    @property
    def finished(self) -> bool:
        """Whether the model said why it stopped. Some servers end there, without `[DONE]`."""
        return _FINISHED.search(self._text()) is not None

    @property
    def usage(self) -> Usage | None:
        """The last usage told."""
        text = self._text()
        at = len(text)
        while (at := text.rfind(b'"usage"', 0, at)) >= 0:
            usage = _usage_in(_data_around(text, at))
            if usage is not None:
                return usage
        return None

    @property
    def failure(self) -> Failure | None:
        """The error that one of the last events told. vLLM sends `[DONE]` even then."""
        text = self._text()
        if b"error" not in text:
            return None
        if len(text) >= KEPT_BYTES:
            text = text[text.find(b"\n") + 1 :]  # The first line may have lost its beginning.
        events = Events()
        found = (event.failure() for event in (*events.feed(text), *events.end()))
        return next((failure for failure in found if failure is not None), None)

    def check_end(self) -> None:
        """Raise a `ProviderFailure` if the stream ended with an error, or before its end."""
        if self._kept_bytes and (failure := self.failure) is not None:
            # Some servers tell of an error and then end as if all were well.
            raise ProviderFailure(failure)
        if not (self.done or self.finished):
            raise cut_short()

    def _mind_edge(self, piece: bytes) -> None:
        """Count a `data:` that was split. Only between two lines nothing can be."""
        self.events += (self._edge + piece[:4]).count(b"data:")
        self._edge = b"" if piece.endswith(b"\n") else (self._edge + piece[-4:])[-4:]

    def _text(self) -> bytes:
        return b"".join(self._pieces)[-KEPT_BYTES:]


def _data_around(text: bytes, at: int) -> bytes:
    """The data of the line around a place; nothing when it is no line of data."""
    end = text.find(b"\n", at)
    line = text[text.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(text)]
    return line[5:].strip() if line.startswith(b"data:") else b""


def _usage_in(data: bytes) -> Usage | None:
    try:
        return read_usage(_read_counted(data).usage)
    except UNREADABLE:
        return None


def cut_short() -> ProviderFailure:
    # Without the marker's own name: a reader that looks for it in the bytes must not find it in our error.
    message = "the stream ended without its end: neither the end marker nor a finish reason came"
    return ProviderFailure(Failure(kind=FailureKind.TRANSIENT, message=message, code="stream_cut"))


def _broken(message: str) -> ProviderFailure:
    return ProviderFailure(Failure(kind=FailureKind.TRANSIENT, message=message, code="bad_envelope"))
