"""Whole answers that pass through: only the envelope is looked at, and what is inside stays JSON.

Blank means what it means for `Answer`: no text, no tool call, no refusal (and no sound or picture).
"""

import re
from typing import Final

import msgspec

from headgate.core.messages import UNREASONED
from headgate.core.wire import Endpoint, WireAnswer
from headgate.core.wire_bodies import EMPTY, UNREADABLE, read_usage
from headgate.providers.openai.errors import ErrorReader

_NULL: Final = msgspec.Raw(b"null")
# Ends at the first character that is no blank, so long texts cost nothing.
_BLANK_TEXT: Final = re.compile(rb'"(?:[ ]|\\[nrtf]|\\u00[aA]0)*"')


class _Message(msgspec.Struct):
    content: msgspec.Raw = _NULL
    tool_calls: msgspec.Raw = _NULL
    refusal: msgspec.Raw = _NULL
    function_call: msgspec.Raw = _NULL
    audio: msgspec.Raw = _NULL
    images: msgspec.Raw = _NULL


class _ChatChoice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Chat(msgspec.Struct):
    choices: list[_ChatChoice]
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL


class _TextChoice(msgspec.Struct):
    text: msgspec.Raw
    finish_reason: str | None = None


class _Text(msgspec.Struct):
    choices: list[_TextChoice]
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL


class _Vectors(msgspec.Struct):
    data: list[msgspec.Raw]
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL


_read_chat = msgspec.json.Decoder(_Chat).decode
_read_text = msgspec.json.Decoder(_Text).decode
_read_vectors = msgspec.json.Decoder(_Vectors).decode


def read_envelope(endpoint: Endpoint, body: bytes, errors: ErrorReader) -> WireAnswer:
    """The answer in a 200's body, which is kept as it is; raises what a body without one means."""
    try:
        envelope, blank = _read(endpoint, body)
    except UNREADABLE as error:
        raise errors.no_answer(body, f"its body is no {endpoint} answer: {error}") from None
    if blank is None:
        raise errors.no_answer(body, "its body holds no answer")
    if bytes(envelope.error) not in EMPTY:
        raise errors.no_answer(body, "its body is an error")
    return WireAnswer(body=body, usage=read_usage(envelope.usage), blank=blank)


def _read(endpoint: Endpoint, body: bytes) -> tuple[_Chat | _Text | _Vectors, bool | None]:
    """The envelope and whether it is blank; None when there is nothing in it at all."""
    if endpoint is Endpoint.CHAT:
        chat = _read_chat(body)
        return chat, all(map(_is_blank_choice, chat.choices)) if chat.choices else None
    if endpoint is Endpoint.COMPLETIONS:
        text = _read_text(body)
        return text, all(map(_is_blank_piece, text.choices)) if text.choices else None
    vectors = _read_vectors(body)
    return vectors, False if vectors.data else None


def _is_blank_choice(choice: _ChatChoice) -> bool:
    return choice.finish_reason in UNREASONED and _is_blank(choice.message)


def _is_blank_piece(choice: _TextChoice) -> bool:
    return choice.finish_reason in UNREASONED and _is_blank_text(choice.text)


def _is_blank(message: _Message) -> bool:
    if not _is_blank_text(message.content):
        return False
    others = (message.tool_calls, message.refusal, message.function_call, message.audio, message.images)
    return all(bytes(value) in EMPTY for value in others)


def _is_blank_text(text: msgspec.Raw) -> bool:
    # A view, because the text may be long.
    view = memoryview(text)
    return bytes(view[:6]) in EMPTY or _BLANK_TEXT.fullmatch(view) is not None
