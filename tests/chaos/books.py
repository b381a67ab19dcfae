"""The four books that an audit compares: what clients were answered, what the store holds and went through, what the
provider was asked, and which disturbances there were. All times are epoch seconds of this machine's real clock.
"""

import enum
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

STORED_S: Final = 2.0
"""How long after its end a call's answer may still be on its way to the store."""


# ---- The clients' ledger ------------------------------------------------------------------------------


class Asked(enum.StrEnum):
    SUBMIT = "submit"
    CALL = "call"
    STREAM = "stream"
    STATUS = "status"
    CANCEL = "cancel"
    OPEN_CALL = "call without a key"


@dataclass(frozen=True)
class Answer:
    """One request, and what its client was answered. `status` is None when the connection ended without a status."""

    asked: Asked
    gateway: str
    key: str
    """The idempotency key; of a status read or a cancel, the job's id."""
    sent_at: float
    at: float
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = True
    """The body came to its end."""
    left: bool = False
    """The client itself hung up first."""
    prompts: tuple[str, ...] = ()
    may_take_s: float = 0.0
    """How long the request may take by what it asks for."""

    @property
    def replayed(self) -> bool:
        return "idempotent-replayed" in self.headers

    @property
    def text(self) -> str:
        return text_of(self.body)

    @property
    def record(self) -> Any:
        return json.loads(self.body)

    @property
    def job_ids(self) -> tuple[str, ...]:
        read = self.record
        return tuple(one["id"] for one in read["data"]) if "data" in read else (read["id"],)

    def __str__(self) -> str:
        took = f"{self.at - self.sent_at:.1f} s"
        return (
            f"{self.asked} {self.key} at {self.gateway} ({clock(self.sent_at)}, took {took}): {self.status}"
        )


def text_of(body: bytes) -> str:
    """What the model said, in a whole completion or in the pieces of a stream."""
    if body.lstrip().startswith(b"{"):
        return str(json.loads(body)["choices"][0]["message"]["content"])
    lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")]
    events = [json.loads(line) for line in lines]
    choices = [choice for event in events for choice in event.get("choices", ())]
    return "".join(choice.get("delta", {}).get("content") or "" for choice in choices)


# ---- The store's book -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredJob:
    """A job's row. Live and finished ones have a table each on PostgreSQL: one id in both is two rows here."""

    id: str
    state: str
    crashes: int
    lease: int
    run_at: float
    reason: str | None
    name: str
    """From the metadata: the submission it belongs to."""
    prompt: str
    text: str | None
    """The answer in its result."""


@dataclass(frozen=True)
class StoredKey:
    key: str
    state: str
    owner: str | None
    job_id: str | None
    text: str | None


@dataclass(frozen=True)
class Change:
    """What a trigger saw: a claim began (`old_lease` < `lease`), or one ended. `by` is the process that wrote it."""

    at: float
    job: str
    old_state: str
    state: str
    old_lease: int
    lease: int
    old_owner: str | None
    owner: str | None
    owner_known: bool
    """`nodes` still had the claimer, and not as one that is gone."""
    cancel_at: float | None
    by: str | None


@dataclass(frozen=True)
class Hold:
    """One claim on one job, from its beginning to its end."""

    job: str
    lease: int
    owner: str
    process: str | None
    began: float
    ended: float | None
    ends: tuple[Change, ...]


@dataclass(frozen=True)
class Sample:
    """What the store said at one moment: the rows of `nodes`, and on PostgreSQL our connections."""

    at: float
    nodes: Mapping[str, str]
    """Each row's contents, by the node's id."""
    owners: Mapping[str, str]
    """The process (`w1#2`) behind each node id, as far as its lock file says."""
    connections: Mapping[str, int] = field(default_factory=dict)
    idle: Sequence[tuple[str, float]] = ()
    """Open transactions that run no statement: whose, and for how long."""


# ---- The provider's book --------------------------------------------------------------------------------


@dataclass
class Call:
    """One call that the provider received."""

    prompt: str
    number: int
    by: str
    """The node that made it."""
    began: float
    ended: float | None = None
    how: str = "running"
    """whole, failed (the provider's own doing), or left (the caller was gone before its end)."""


# ---- The disturbances ---------------------------------------------------------------------------------


class Kind(enum.StrEnum):
    KILL = "killed"
    FREEZE = "frozen"
    SILENCE = "silent"
    REFUSAL = "refused"
    STARVED = "starved"
    STOP = "stopped in order"
    CUT = "cut"
    DELAY = "slowed down"
    STORE = "store away"
    CLOCK = "clock set"


ALONE: Final = {Kind.KILL, Kind.FREEZE, Kind.SILENCE, Kind.REFUSAL, Kind.STARVED}
"""A node that this happened to may be thought dead by the others, who can see the store."""


@dataclass
class Disturbance:
    kind: Kind
    node: str | None
    """None: all of them, through the store or the machine."""
    began: float
    ended: float | None = None
    note: str = ""

    def __str__(self) -> str:
        subject = self.node or "everything"
        until = "" if self.ended is None else f"–{clock(self.ended)}"
        return f"{subject} {self.kind} {clock(self.began)}{until}{f' ({self.note})' if self.note else ''}"

    def touches(self, began: float, ended: float) -> bool:
        return self.began <= ended and began <= (self.ended or float("inf"))

    @property
    def took_s(self) -> float:
        return (self.ended or float("inf")) - self.began


@dataclass(frozen=True)
class Exit:
    """A process that ended by itself."""

    node: str
    at: float
    code: int


@dataclass(kw_only=True)
class Books:
    lease_s: float
    began: float = 0.0
    healed_at: float = 0.0
    """From here on nothing was disturbed any more."""
    read_at: float = 0.0
    """When the store was read, at the very end."""
    lives: dict[str, tuple[float, float]] = field(default_factory=dict)
    """From when to when each process (`w1#2`) was to run: from its first line to its kill or its SIGTERM."""
    answers: list[Answer] = field(default_factory=list)
    jobs: list[StoredJob] = field(default_factory=list)
    keys: list[StoredKey] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    exits: list[Exit] = field(default_factory=list)

    def keyed(self, *asked: Asked) -> dict[str, list[Answer]]:
        """The answers to these requests, by key."""
        found: defaultdict[str, list[Answer]] = defaultdict(list)
        for answer in self.answers:
            if answer.asked in asked:
                found[answer.key].append(answer)
        return dict(found)

    @cached_property
    def holds(self) -> list[Hold]:
        """Every claim that the triggers saw, in their order."""
        begun: dict[tuple[str, int], Change] = {}
        ends: defaultdict[tuple[str, int], list[Change]] = defaultdict(list)
        for change in self.changes:
            if change.state == "running" and change.lease != change.old_lease:
                begun[change.job, change.lease] = change
            elif change.old_state == "running":
                ends[change.job, change.old_lease].append(change)
        return [
            Hold(
                job=job,
                lease=lease,
                owner=str(start.owner),
                process=start.by or self.owners.get(str(start.owner)),
                began=start.at,
                ended=ends[job, lease][0].at if ends[job, lease] else None,
                ends=tuple(ends[job, lease]),
            )
            for (job, lease), start in begun.items()
        ]

    @cached_property
    def owners(self) -> dict[str, str]:
        """The process behind each node id that was ever seen."""
        return {node: process for sample in self.samples for node, process in sample.owners.items()}

    @property
    def fatal_s(self) -> float:
        """A node that is held off for so long alone may be thought dead: it renews three times in a lease."""
        return self.lease_s / 2

    def during(
        self, began: float, ended: float, *kinds: Kind, node: str | None = None, least_s: float = 0.0
    ) -> list[Disturbance]:
        """Disturbances of these kinds then: of this node, or of everything. A kill is a moment, and always counts."""
        return [
            one
            for one in self.disturbances
            if one.kind in kinds
            and one.touches(began, ended)
            and (node is None or one.node is None or one.node == node)
            and (one.kind is Kind.KILL or one.took_s >= least_s)
        ]

    def excuse(self, call: Call) -> bool:
        """Whether this call's outcome may have been lost through no fault of ours: it failed, or its node was disturbed."""
        end = self._stored_by(call)
        return call.how == "failed" or bool(
            self.during(call.began, end, *ALONE, node=call.by, least_s=self.fatal_s)
        )

    def _stored_by(self, call: Call) -> float:
        """Until when its outcome may be in memory only: the node waits for a store that it cannot reach."""
        end = (float("inf") if call.ended is None else call.ended) + STORED_S
        for one in sorted(self.disturbances, key=lambda one: one.began):
            away = one.kind in {Kind.STORE, Kind.SILENCE, Kind.REFUSAL, Kind.FREEZE, Kind.STARVED, Kind.CUT}
            if away and one.node in {None, call.by} and one.touches(call.began, end):
                end = max(end, (one.ended or float("inf")) + self.lease_s + STORED_S)
        return end

    def before(self, at: float) -> str:
        """For messages: the last disturbances before this moment."""
        last = sorted((one for one in self.disturbances if one.began <= at), key=lambda one: one.began)[-3:]
        return "; before that: " + ", ".join(map(str, last)) if last else "; nothing had been disturbed"


def clock(at: float) -> str:
    """A moment as seconds within the hour: enough to find it in the logs."""
    return f"{int(at // 60) % 60:02}:{at % 60:06.3f}"


def bare(process: str | None) -> str:
    """The node of a process: `w1` of `w1#2`."""
    return (process or "?").partition("#")[0]


def each_job(books: Books) -> Iterator[tuple[StoredJob, list[Hold]]]:
    """Every job with its claims."""
    holds: defaultdict[str, list[Hold]] = defaultdict(list)
    for hold in books.holds:
        holds[hold.job].append(hold)
    for job in books.jobs:
        yield job, holds[job.id]
