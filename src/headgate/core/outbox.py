"""The rules of an outbox: when an entry may be sent, and what becomes of it after each try. Values in, values out.

The gateway knows an entry by its key, for 72 hours after it first took it. From the moment a try may have reached the
gateway, the entry is in doubt; while the doubt is young the key makes every further try safe, whatever happened.
An entry that surely never arrived is in no doubt and may wait for ever.
"""

import enum
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

MOST_FAILURES: Final = 3
HORIZON_H: Final = 60.0
"""Shorter than the gateway keeps its keys, with half a day to spare for clocks that disagree."""


class EntryState(enum.StrEnum):
    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"
    """A person decides: `retry` or `discard`. The stream goes on without it."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How an entry stands. Times are epoch seconds."""

    state: EntryState = EntryState.WAITING
    failures: int = 0
    doubt_since: float | None = None
    """When the first try began that may have arrived without our knowing."""
    reason: str | None = None
    server_id: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """The gateway has it, as this job or bookmark."""

    server_id: str


@dataclass(frozen=True, slots=True)
class NotNow:
    """Refused or out of reach. Costs nothing, however often. `nothing_stored`: it surely was not carried out."""

    nothing_stored: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """An answer that says no. It counts."""

    reason: str
    nothing_stored: bool


Outcome: TypeAlias = Taken | NotNow | Failed


def begin(standing: Standing, *, now: float, horizon_s: float) -> Standing:
    """What must be on the disk before a try: the doubt, or the end of all tries."""
    if standing.doubt_since is None:
        return msgspec.structs.replace(standing, doubt_since=now)
    if now - standing.doubt_since <= horizon_s:
        return standing
    hours = horizon_s / 3600
    reason = (
        f"outcome unknown: it was sent more than {hours:g} h ago, no answer came, and its key may be forgotten by now."
        " Look on the gateway whether the job is there; then discard it here, or retry it"
    )
    return msgspec.structs.replace(standing, state=EntryState.FAILED, reason=reason)


def conclude(before: Standing, begun: Standing, outcome: Outcome) -> Standing:
    """How it stands after a try: `before` it, and as it was `begun`."""
    if isinstance(outcome, Taken):
        return msgspec.structs.replace(begun, state=EntryState.SENT, server_id=outcome.server_id, reason=None)
    # What this try cannot have stored leaves the doubt as it was, and takes none away that was there before.
    kept = before.doubt_since if outcome.nothing_stored else begun.doubt_since
    if isinstance(outcome, NotNow):
        return msgspec.structs.replace(begun, doubt_since=kept)
    failures = before.failures + 1
    state = EntryState.FAILED if failures >= MOST_FAILURES else EntryState.WAITING
    return msgspec.structs.replace(
        begun, state=state, failures=failures, doubt_since=kept, reason=outcome.reason
    )


def again(standing: Standing) -> Standing:
    """A person sends a failed entry once more, under its key: where the gateway still knows it, it gives the same job."""
    return msgspec.structs.replace(
        standing, state=EntryState.WAITING, failures=0, doubt_since=None, reason=None
    )
