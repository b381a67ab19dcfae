"""Who calls, and what they may. The routes ask here and know nothing of keys."""

from collections.abc import Iterable
from typing import Protocol

from headgate.core.messages import Lane


class Caller(Protocol):
    """One who was let in."""

    tenant: str
    lane: Lane
    """Where its requests queue unless they say otherwise."""

    def check_model(self, model: str) -> None:
        """Raises when this caller may not use the model."""
        ...

    def used(self, tokens: int) -> None:
        """What a request cost, once that is known."""
        ...

    def leave(self) -> None:
        """Its request is over. Called once for each that was admitted."""
        ...


class Access(Protocol):
    """The door."""

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Let one request in, counted against its caller's limits, or raise what the client is told."""
        ...


class _Anybody:
    """Without keys everybody is the same: whoever can reach this machine's loopback."""

    tenant = "local"
    lane = Lane.INTERACTIVE

    def check_model(self, model: str) -> None:
        """Every model is open."""

    def used(self, tokens: int) -> None:
        """Nobody counts."""

    def leave(self) -> None:
        """Nobody counts."""


class OpenAccess:
    """No keys were made: nobody is asked for one."""

    def __init__(self) -> None:
        self._anybody = _Anybody()

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:  # noqa: ARG002 - the protocol's shape
        return self._anybody
