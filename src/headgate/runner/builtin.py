"""The tasks that come with headgate: `chat` and `embeddings`. A body in, and out what the direct call would return."""

from collections.abc import Mapping
from typing import Any

import msgspec

from headgate.core.call import Format, check_messages, check_text, read_texts
from headgate.core.errors import InvalidRequest
from headgate.runner.context import Context
from headgate.runner.tasks import Task

Body = dict[str, msgspec.Raw]
"""One level deep: what is inside a field reaches the provider as it came."""
_OURS = frozenset({"model", "stream", "stream_options"})
"""What the gateway reads itself; everything else passes to the provider."""
_NOT_FROM_OUTSIDE = frozenset({"check", "regenerations", "self"})
"""What the code of a task says to its call. From a caller it is a mistake: no provider has a parameter of that name."""
_FALSE = frozenset({b"false", b"null"})
_FLEX = b'"flex"'
"""The tier that is ours: a job is batch by itself."""


def _values(body: Body) -> dict[str, Any]:
    """The fields as values. A job's input is shown later, so one that cannot be read is rejected now."""
    try:
        return {name: msgspec.json.decode(raw) for name, raw in body.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the input is not valid JSON: {error}", param="input") from None


def _refuse_strange(body: Body) -> dict[str, Any]:
    if bytes(body.get("stream", b"null")) not in _FALSE:
        raise InvalidRequest("a job cannot stream: leave out stream, or set it to false", param="stream")
    for name in sorted(_NOT_FROM_OUTSIDE & body.keys()):
        raise InvalidRequest(f"{name} is no parameter of a call: leave it out", param=name)
    values = _values(body)
    if (model := values.get("model")) is not None:
        check_text("model", model)
    return values


def _check_chat(body: Body) -> None:
    check_messages(_refuse_strange(body).get("messages") or ())


def _check_embeddings(body: Body) -> None:
    read_texts(_refuse_strange(body).get("input"))


def _fields(body: Mapping[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    # To the job's model, which is the submission's if it named one, else the body's.
    fields = {name: value for name, value in body.items() if name not in _OURS}
    if bytes(fields.get("service_tier", b"")) == _FLEX:
        del fields["service_tier"]
    return fields


async def _ask(ctx: Context, body: Body, wanted: Format) -> msgspec.Raw:
    size_bytes = sum(map(len, body.values()))
    return msgspec.Raw((await ctx.llm.send(_fields(body), wanted=wanted, size_bytes=size_bytes)).body)


async def _chat(ctx: Context, body: Body) -> msgspec.Raw:
    return await _ask(ctx, body, Format.CHAT)


async def _embeddings(ctx: Context, body: Body) -> msgspec.Raw:
    return await _ask(ctx, body, Format.EMBEDDINGS)


chat = Task("chat", _chat, check=_check_chat, needs_model=True)
embeddings = Task("embeddings", _embeddings, check=_check_embeddings, needs_model=True)
BUILT_IN = (chat, embeddings)
