"""Joining two streams of one answer: the second passes over what the first had sent before it broke, if it is the same."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from headgate.formats.sse import DONE, Event, Events

_OTHER: Final = (
    "tool_calls",
    "function_call",
    "refusal",
    "reasoning_content",
    "reasoning",
    "thinking_blocks",
    "audio",
    "images",
)
_encode = msgspec.json.Encoder().encode


class NoMatch(Exception):
    """The second stream tells another story, or the first told more than text."""


class Splice:
    """Takes the second stream's bytes, gives what the client has not had yet. Only text of one choice can be joined."""

    def __init__(self, sent: Iterable[bytes]) -> None:
        events = Events()
        self._events = Events()
        self._left = "".join(_text(event) for piece in sent for event in events.feed(piece))
        """What must come again before anything new does."""

    def feed(self, piece: bytes) -> bytes:
        """Whole events for the client; nothing while the stream is still behind. Raises `NoMatch`."""
        return b"".join(filter(None, map(self._take, self._events.feed(piece))))

    def end(self) -> bytes:
        """The second stream is over."""
        last = b"".join(filter(None, map(self._take, self._events.end())))
        if self._left:
            raise NoMatch
        return last

    def _take(self, event: Event) -> bytes:
        if not self._left:
            return _rendered(event)
        if event.data == DONE or event.failure() is not None:
            raise NoMatch
        text = _text(event)
        known = self._left[: len(text)]
        if not text.startswith(known):
            raise NoMatch
        self._left = self._left[len(known) :]
        new = text[len(known) :]
        return _with_text(event, new) if new else b""


def _rendered(event: Event) -> bytes:
    name = b"event: %b\n" % event.name if event.name else b""
    lines = b"".join(b"data: %b\n" % line for line in event.data.split(b"\n"))
    return b"%b%b\n" % (name, lines)


def _text(event: Event) -> str:
    """The event's text; "" for one that has none. Raises `NoMatch` for content of another kind."""
    if event.data == DONE:
        return ""
    choice = _choice(_body(event))
    delta = choice.get("delta", choice)
    if any(delta.get(name) for name in _OTHER):
        raise NoMatch
    text = delta.get("content", delta.get("text"))
    return text if isinstance(text, str) else ""


def _with_text(event: Event, text: str) -> bytes:
    body = _body(event)
    choice = _choice(body)
    if "delta" in choice:
        choice["delta"]["content"] = text
    else:
        choice["text"] = text
    return b"data: %b\n\n" % _encode(body)


def _body(event: Event) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(event.data)
    except msgspec.DecodeError:
        raise NoMatch from None
    if not isinstance(body, dict):
        raise NoMatch
    return body


def _choice(body: dict[str, Any]) -> dict[str, Any]:
    choices = body.get("choices") or [{}]
    if len(choices) != 1 or not isinstance(choices[0], dict) or choices[0].get("index", 0) != 0:
        raise NoMatch
    choice: dict[str, Any] = choices[0]
    return choice
