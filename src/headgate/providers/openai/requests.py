"""Our requests as bodies in OpenAI's format. Parameters pass untouched.

Refused: `model`, `messages` and `input` among the parameters, `stream` in a whole request, and `n` other than 1,
because all answers but one would be paid for and thrown away.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from headgate.core.embeddings import EmbeddingRequest
from headgate.core.messages import Request
from headgate.core.wire import WireRequest
from headgate.providers.params import refused

_OURS: Final = ("model", "messages", "input")


def wire_body(model: str, request: WireRequest) -> bytes:
    """The body as it came, under the server's name for the model. No field is decoded."""
    if request.stream:
        return _encode({"model": model, **request.fields, "stream": True})
    return _encode({"model": model, **request.fields})


def chat_body(model: str, request: Request) -> bytes:
    _check_params(request.params)
    if request.params.get("stream"):
        raise refused("stream", "must not be set: ask for a stream instead")
    return _encoded({"model": model, "messages": request.messages, **request.params})


def stream_body(model: str, request: Request) -> bytes:
    """As `chat_body`. The usage is asked for unless the caller chose its own `stream_options`."""
    _check_params(request.params)
    options = {"stream_options": {"include_usage": True}, **request.params, "stream": True}
    return _encoded({"model": model, "messages": request.messages, **options})


def embeddings_body(model: str, request: EmbeddingRequest) -> bytes:
    _check_params(request.params)
    return _encoded({"model": model, "input": request.input, **request.params})


def _check_params(params: Mapping[str, Any]) -> None:
    for name in _OURS:
        if name in params:
            raise refused(name, "cannot be a parameter: it has a field of its own")
    if params.get("n") not in (None, 1):
        raise refused("n", "must be 1: one request has one answer")


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return _encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise refused("messages or parameters", f"cannot be written as JSON: {error}") from None


def _plain(value: object) -> object:
    """For callers' own kinds of mappings and lists."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a value of type {type(value).__name__}")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
