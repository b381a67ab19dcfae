"""The seam to a provider: a wire format in front of one model. All else happens on our side of it."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from headgate.core.embeddings import EmbeddingRequest, Embeddings
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.messages import Answer, Chunk, Request
from headgate.core.wire import WireAnswer, WireRequest


class ItemAnswer(msgspec.Struct, frozen=True):
    """One item's part of a call that carried many: routed back to its asker by `request_id`."""

    request_id: str
    outcome: Answer | Failure


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider said when it was asked without being paid: it is there, and it let us in."""

    has_model: bool | None
    """None: it does not say which models it has."""
    models: tuple[str, ...] = ()
    """Those it named."""
    remark: str = ""
    """Why it does not say, or how a missing model gets there."""
    advice: str = ""
    """What to change, where it was found at another address than ours (`has_model` False) or may be there (None)."""


class Provider(Protocol):
    """One attempt per call: no retries, no waiting in line, no swallowed errors inside.

    A failed attempt raises `ProviderFailure`; any other exception is classified by its structure.
    Cancelling the call must stop the work upstream.
    """

    most_inputs: int
    """How many requests fit into one `complete_many`; 1 when the wire format takes only one."""

    async def complete(self, request: Request) -> Answer: ...

    def stream(self, request: Request) -> AsyncIterator[Chunk]: ...

    async def complete_many(self, requests: Sequence[Request]) -> Sequence[ItemAnswer]: ...

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """One vector per text, in their order. A provider that cannot raises `no_embeddings()`."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class WireProvider(Provider, Protocol):
    """A provider that speaks OpenAI's format itself: bodies pass through it byte by byte."""

    async def relay(self, request: WireRequest) -> WireAnswer:
        """Send the request under the provider's own model name; its 200 is checked, its bytes are kept."""
        ...

    def relay_stream(self, request: WireRequest) -> AsyncIterator[bytes]:
        """The bytes of the server-sent events as they arrive. Closing it early stops the work upstream.

        Ends when the upstream's answer ends; whether `[DONE]` was among it is the reader's to see.
        """
        ...


@runtime_checkable
class Probing(Protocol):
    """A provider that can be asked whether it would answer, at no cost."""

    async def probe(self) -> Sighting:
        """Raises `ProviderFailure` when it is not there or does not let us in. The caller bounds the time."""
        ...


def no_embeddings() -> ProviderFailure:
    """What a provider raises when its wire format or its model has no embeddings."""
    return ProviderFailure(
        Failure(kind=FailureKind.REJECTED, message="this upstream has no embeddings", code="no_embeddings")
    )
