"""The seam to a provider: a wire format in front of one model. All else happens on our side of it."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from headgate.core.embeddings import EmbeddingRequest, Embeddings
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.messages import Answer, Chunk, Request


class ItemAnswer(msgspec.Struct, frozen=True):
    """One item's part of a call that carried many: routed back to its asker by `request_id`."""

    request_id: str
    outcome: Answer | Failure


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


def no_embeddings() -> ProviderFailure:
    """What a provider raises when its wire format or its model has no embeddings."""
    return ProviderFailure(
        Failure(kind=FailureKind.REJECTED, message="this upstream has no embeddings", code="no_embeddings")
    )
