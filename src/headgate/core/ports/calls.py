"""What the job runner needs of the dispatcher: single attempts for a job, and how much a model can take."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from headgate.core.answer import Answer, Reply
from headgate.core.call import Format, Message
from headgate.core.job import Claim
from headgate.core.metering import Meter


class Llm(Protocol):
    """A task's way to its model. Calls are single attempts per upstream: the job owns the retries."""

    upstream: str | None
    """Who answered last; the job's history tells."""
    calls: int
    """Calls to providers in this run, those that failed too."""
    cost_usd: float
    """What the answers of this run cost, the unusable ones too, as far as their price is known."""
    unpriced: int
    """How many answers of this run have no known price, the unusable ones too."""

    def close(self) -> None:
        """The run is over."""
        ...

    async def complete(
        self,
        *,
        messages: Sequence[Message],
        model: str | None = None,
        check: Callable[[Answer], object] | None = None,
        regenerations: int | Sequence[Mapping[str, Any]] = 2,
        params: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Reply:
        """Ask the job's model, or another. A blank answer, or one that fails its `check`, is generated anew at once,
        `regenerations` times at most: a number, or the parameters that each regeneration changes. `more` goes to the
        provider, and so does `params`, which is for names that came from outside.
        """
        ...

    async def embed(
        self,
        *,
        input: str | Sequence[str],  # noqa: A002 - its name wherever embeddings are asked for
        model: str | None = None,
        params: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Reply: ...

    async def send(
        self,
        fields: Mapping[str, Any],
        *,
        wanted: Format = Format.CHAT,
        size_bytes: int = 0,
        model: str | None = None,
    ) -> Reply:
        """Ask with a body as it came, without its model and stream. The reply's body is what a direct call gets."""
        ...


class Calls(Protocol):
    """The dispatcher, as a worker sees it."""

    def llm(
        self, claim: Claim, *, deadline: float, new_id: Callable[[], str], meter: Meter | None = None
    ) -> Llm:
        """The job's way to its model. What it uses is counted by the meter of the key that submitted it."""
        ...

    def places(self, model: str) -> int:
        """How many of the model's jobs may run here now: its batch slots and the few that wait for them.

        None when its upstreams are paused, broken or held, and none for a model that nobody here knows.
        """
        ...

    def check_model(self, model: str) -> None:
        """`UnknownModel` when no settings name it."""
        ...
