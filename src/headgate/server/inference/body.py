"""From a body to a request: only what the gate must know is read, everything else stays JSON."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.calls.requests import LARGE_BYTES
from headgate.core.call import MAX_ID_CHARS, Format, Lane, check_text
from headgate.core.errors import InvalidRequest
from headgate.core.json_trouble import MAX_NESTING, MAX_SIGNS, check_json, why_no_json

_ASKED: Final[Mapping[Format, str]] = {
    Format.CHAT: "messages",
    Format.COMPLETIONS: "prompt",
    Format.EMBEDDINGS: "input",
}
_OPENINGS: Final[Mapping[Format, bytes]] = {
    Format.CHAT: b"[",
    Format.COMPLETIONS: b'["',
    Format.EMBEDDINGS: b'["',
}
_KINDS: Final[Mapping[Format, str]] = {
    Format.CHAT: "a list with at least one message",
    Format.COMPLETIONS: "a text, or a list with one, and not empty",
    Format.EMBEDDINGS: "a text or a list of texts, and not empty",
}
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_FLAGS: Final = {b"true": True, b"false": False, b"null": False}
_FIRST_MODEL: Final = re.compile(rb'\s*\{\s*"model"\s*:\s*"([\w./:@+-]{1,255})"', re.ASCII)
_FLEX: Final = b'"flex"'
_NOTHING_ASKED: Final = frozenset({b"[]", b'""'})
MAX_MODELS: Final = 1000
_models: dict[bytes, str] = {}
"""Names as they came, read and checked before."""


class Body(msgspec.Struct, gc=False):
    """What a body asks, one level deep. `fields` is without `model`, `stream` and what is ours."""

    model: str
    stream: bool
    tier: Lane | None
    fields: dict[str, msgspec.Raw]


def read_body(body: bytes, wanted: Format) -> Body:
    """`InvalidRequest` names the field that makes no sense."""
    # A larger one was checked before, and others had their turn since.
    if LARGE_BYTES >= len(body) > MAX_SIGNS or body.count(b"[") + body.count(b"{") > MAX_NESTING:
        check_json(body)
    try:
        if not body.isascii():
            # Values stay as they came: what is not UTF-8 would only be noticed upstream.
            body.decode()
        fields = _fields.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _no_object(body, error) from None
    raw = fields.pop("model", None)
    model = None if raw is None or len(raw) > MAX_ID_CHARS else _models.get(bytes(raw))
    if model is None:
        model = _model(raw)
    stream = "stream" in fields and _flag("stream", fields.pop("stream"))
    tier = _tier(fields) if "service_tier" in fields else None
    asked = fields.get(_ASKED[wanted])
    if asked is None:
        raise InvalidRequest(f"the body must have {_ASKED[wanted]}", param=_ASKED[wanted])
    start = bytes(memoryview(asked)[:2])
    if start[0] not in _OPENINGS[wanted] or start in _NOTHING_ASKED:
        raise InvalidRequest(f"{_ASKED[wanted]} must be {_KINDS[wanted]}", param=_ASKED[wanted])
    if wanted is Format.EMBEDDINGS and stream:
        raise InvalidRequest("embeddings are not streamed", param="stream")
    return Body(model, stream, tier, fields)


def peek_model(beginning: bytes) -> str | None:
    """The model, where the body begins with it, as most do. Nothing else is looked at."""
    found = _FIRST_MODEL.match(beginning)
    return None if found is None else found[1].decode()


def _no_object(body: bytes, error: Exception) -> InvalidRequest:
    if isinstance(error, msgspec.ValidationError):
        return InvalidRequest("the body must be a JSON object")
    return InvalidRequest(f"the body is not valid JSON: {why_no_json(body, error)}")


def _model(raw: msgspec.Raw | None) -> str:
    if raw is None:
        raise InvalidRequest("the body must name a model", param="model")
    try:
        model = _text.decode(raw)
    except msgspec.MsgspecError:
        raise InvalidRequest("model must be a text", param="model") from None
    check_text("model", model)
    if len(_models) >= MAX_MODELS:
        _models.clear()
    _models[bytes(raw)] = model
    return model


def _flag(name: str, raw: Any) -> bool:
    if raw is None:
        return False
    flag = _FLAGS.get(bytes(raw))
    if flag is None:
        raise InvalidRequest(f"{name} must be true or false", param=name)
    return flag


def _tier(fields: dict[str, msgspec.Raw]) -> Lane | None:
    """`flex` means: nobody waits. It is ours; every other tier is the provider's, and stays."""
    tier = fields.get("service_tier")
    if tier is None or bytes(tier) != _FLEX:
        return None
    del fields["service_tier"]
    return Lane.BATCH
