"""Calls as tests make them, and streams read as the dispatcher and the library read them."""

from collections.abc import AsyncIterator
from typing import Any

from headgate.core.answer import Chunk
from headgate.core.call import Call, Format
from headgate.core.ports.provider import Provider
from headgate.formats import chat
from headgate.formats.sse import FirstContent, Tail


def a_call(content: Any = "Hi", *, stream: bool = False, **fields: Any) -> Call:
    """A chat. A stream asks for its usage, as the library does."""
    fields = {"messages": [{"role": "user", "content": content}], **fields}
    if stream:
        fields = {"stream_options": {"include_usage": True}, **fields}
    return Call(id="r1", model="public", fields=fields, stream=stream)


def an_embedding_call(*texts: str, **fields: Any) -> Call:
    return Call(id="e1", model="public", format=Format.EMBEDDINGS, fields={"input": list(texts), **fields})


async def chunks_of(provider: Provider, call: Call) -> AsyncIterator[Chunk]:
    """The chunks of a stream. Raises what its opening, an error event or a missing end means."""
    reader, first, tail = chat.StreamReader(), FirstContent(), Tail()
    begun = False
    async for piece in provider.stream(call):
        begun = begun or first.feed(piece)
        tail.feed(piece)
        for chunk in reader.feed(piece):
            yield chunk
    tail.check_end()
