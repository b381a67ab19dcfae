"""The seam to a provider: one model behind an origin and its credentials. All else happens on our side of it."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from headgate.core.answer import Answer
from headgate.core.call import Call, Format
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider said to a request that costs nothing: it is there, and it let us in."""

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
    Cancelling the call must stop the work upstream. Answers and streams have the format of the call.
    """

    @property
    def formats(self) -> frozenset[Format]:
        """What `send` and `stream` take. Calls in other formats are translated through `Format.CHAT`."""
        ...

    @property
    def reads(self) -> bool:
        """It looks inside requests: those that cannot be read are rejected before they queue."""
        ...

    async def send(self, call: Call) -> Answer:
        """The whole answer, its envelope checked."""
        ...

    def stream(self, call: Call) -> AsyncIterator[bytes]:
        """The bytes of the server-sent events as they arrive. Closing it early stops the work upstream.

        Ends when the upstream's answer ends; whether `[DONE]` was among it is the reader's to check.
        """
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class Probing(Protocol):
    """A provider that can be asked whether it would answer, at no cost."""

    async def probe(self) -> Sighting:
        """Raises `ProviderFailure` when it is not there or does not let us in. The caller bounds the time."""
        ...


class ItemAnswer(msgspec.Struct, frozen=True):
    """One item's part of a call that carried many: routed back by `request_id`."""

    request_id: str
    outcome: Answer | Failure


class ManyAtOnce(Protocol):
    """A provider whose wire format takes several chat requests in one call."""

    max_calls: int
    """How many; 1 where it takes only one."""

    async def send_many(self, calls: Sequence[Call]) -> Sequence[ItemAnswer]: ...


def no_embeddings() -> ProviderFailure:
    """What an upstream fails with whose wire format or model has no embeddings."""
    return ProviderFailure(
        Failure(kind=FailureKind.REJECTED, message="this upstream has no embeddings", code="no_embeddings")
    )
