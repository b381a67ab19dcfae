"""From a body to a request: only what the gate must know is read, everything else stays JSON."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.calls.relaying import LARGE_BYTES
from headgate.core.errors import InvalidRequest
from headgate.core.json_trouble import check_json, why_no_json
from headgate.core.messages import Lane, check_text
from headgate.core.wire import Endpoint, WireRequest
from headgate.server.inference.head import Head

_ASKED: Final[Mapping[Endpoint, str]] = {
    Endpoint.CHAT: "messages",
    Endpoint.COMPLETIONS: "prompt",
    Endpoint.EMBEDDINGS: "input",
}
_OPENINGS: Final[Mapping[Endpoint, bytes]] = {
    Endpoint.CHAT: b"[",
    Endpoint.COMPLETIONS: b'["',
    Endpoint.EMBEDDINGS: b'["',
}
_KINDS: Final[Mapping[Endpoint, str]] = {
    Endpoint.CHAT: "a list with at least one message",
    Endpoint.COMPLETIONS: "a text, or a list with one, and not empty",
    Endpoint.EMBEDDINGS: "a text or a list of texts, and not empty",
}
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)
_FLAGS: Final = {b"true": True, b"false": False, b"null": False}
_FIRST_MODEL: Final = re.compile(rb'\s*\{\s*"model"\s*:\s*"([\w./:@+-]{1,255})"', re.ASCII)
_FLEX: Final = b'"flex"'


def read_body(
    body: bytes, endpoint: Endpoint, head: Head, *, request_id: str, tenant: str, lane: Lane
) -> WireRequest:
    """`InvalidRequest` names the field that makes no sense. `lane` is the caller's own, unless the request says."""
    fields = _decode(body)
    model = _model(fields.pop("model", None))
    stream = _flag("stream", fields.pop("stream", None))
    tier = _tier(fields)
    _check_asked(fields, endpoint)
    if endpoint is Endpoint.EMBEDDINGS and stream:
        raise InvalidRequest("embeddings are not streamed", param="stream")
    return WireRequest(
        id=request_id,
        endpoint=endpoint,
        model=model,
        fields=fields,
        size_bytes=len(body),
        stream=stream,
        lane=head.lane or tier or lane,
        tenant=tenant,
        agent_id=head.agent_id,
        wait=head.wait,
    )


def peek_model(beginning: bytes) -> str | None:
    """The model, where the body begins with it, as most do. Nothing else is looked at."""
    found = _FIRST_MODEL.match(beginning)
    return None if found is None else found[1].decode()


def _decode(body: bytes) -> dict[str, msgspec.Raw]:
    if len(body) <= LARGE_BYTES:
        check_json(body)  # A larger one was checked before, and others had their turn since.
    try:
        if not body.isascii():
            # Values stay as they came: what is no UTF-8 would only be noticed upstream.
            body.decode()
        return _fields.decode(body)
    except msgspec.ValidationError:
        raise InvalidRequest("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {why_no_json(body, error)}") from None


def _model(raw: msgspec.Raw | None) -> str:
    if raw is None:
        raise InvalidRequest("the body must name a model", param="model")
    try:
        model = _text.decode(raw)
    except msgspec.MsgspecError:
        raise InvalidRequest("model must be a text", param="model") from None
    check_text("model", model)
    return model


def _flag(name: str, raw: Any) -> bool:
    if raw is None:
        return False
    flag = _FLAGS.get(bytes(raw))
    if flag is None:
        raise InvalidRequest(f"{name} must be true or false", param=name)
    return flag


def _check_asked(fields: Mapping[str, msgspec.Raw], endpoint: Endpoint) -> None:
    name = _ASKED[endpoint]
    raw = fields.get(name)
    if raw is None:
        raise InvalidRequest(f"the body must have {name}", param=name)
    view = memoryview(raw)
    if view[0] not in _OPENINGS[endpoint] or bytes(view[:2]) in {b"[]", b'""'}:
        raise InvalidRequest(f"{name} must be {_KINDS[endpoint]}", param=name)


def _tier(fields: dict[str, msgspec.Raw]) -> Lane | None:
    """`flex` means: nobody waits. It is ours; every other tier is the provider's, and stays."""
    tier = fields.get("service_tier")
    if tier is None or bytes(tier) != _FLEX:
        return None
    del fields["service_tier"]
    return Lane.BATCH
