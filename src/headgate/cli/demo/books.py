"""The books of a storm, kept from outside: what was asked, how each of it ended, and what the providers saw of it."""

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headgate.core.job import Job, JobState


class Kind(enum.StrEnum):
    """Ways of asking."""

    CALL = "calls"
    STREAM = "streams"
    TWIN = "same key"
    JOB = "jobs"
    LINE = "lines"

    @property
    def durable(self) -> bool:
        """The gateway owns it once it is accepted."""
        return self in {Kind.JOB, Kind.LINE}


class End(enum.StrEnum):
    """How something that was asked ended, as whoever asked saw it."""

    ANSWERED = "answered"
    FAILED = "failed"
    """Told so, with a reason."""
    REFUSED = "refused"
    """Told when to come back, and did not want to any more."""
    DEAD = "dead letter"
    UNHEARD = "unheard"
    """The connection ended without a word."""


@dataclass(kw_only=True, slots=True)
class Item:
    """One question. Its name is its text, so a provider can tell questions apart without being told more."""

    name: str
    kind: Kind
    askers: int = 1
    """Each of them is owed one end."""
    requests: int = 0
    """How often it was sent to the gateway, refusals included."""
    refusals: int = 0
    ends: list[End] = field(default_factory=list)
    answer_ids: set[str] = field(default_factory=set)
    """The provider names each of its answers: two names are two answers."""
    wrong_answers: int = 0
    """Answers to another question."""
    crashes: int = 0
    """Workers that died with it: each may have paid for an answer nobody got to keep."""
    reason: str | None = None
    """Why it is a dead letter."""

    def answer(self, text: str, answer_id: str) -> None:
        self.ends.append(End.ANSWERED)
        self.answer_ids.add(answer_id)
        self.wrong_answers += not is_answer_to(self.name, text)


@dataclass(slots=True)
class Counts:
    """One provider's own books."""

    arrived: Counter[str] = field(default_factory=Counter)
    """Question → attempts that reached it."""
    answered: Counter[str] = field(default_factory=Counter)
    """Question → answers written out to the end."""
    free: Counter[str] = field(default_factory=Counter)
    """Of those that arrived: throttled, or met by the outage. They do not count towards `max_attempts`."""
    throttled: int = 0
    failed: int = 0
    left: int = 0
    """Whoever asked was gone before the answer: a killed worker, mostly."""
    in_flight: int = 0


@dataclass(slots=True)
class Books:
    """Everything that was asked."""

    items: dict[str, Item] = field(default_factory=dict)
    waits_s: list[float] = field(default_factory=list)
    """Promised with refusals."""
    latencies_s: list[float] = field(default_factory=list)
    """Of interactive answers: from the request to the last byte."""
    broken: list[str] = field(default_factory=list)
    """Promises seen broken, in words."""
    worker_deaths: int = 0
    mended: str | None = None
    """The dead letter that was replayed."""
    poison: str | None = None
    """The one that must not complete."""

    def open(self, name: str, kind: Kind, *, askers: int = 1) -> Item:
        self.items[name] = item = Item(name=name, kind=kind, askers=askers)
        return item

    def of(self, kind: Kind) -> Iterator[Item]:
        return (item for item in self.items.values() if item.kind is kind)

    def see(self, jobs: Iterable[Job]) -> None:
        """What the store says of all jobs takes the place of what it said before."""
        for item in self.items.values():
            if item.kind.durable:
                item.ends.clear()
        for job in jobs:
            asked = self.items.get(question_of(job))
            if asked is not None:
                _settle(asked, job)

    @property
    def open_jobs(self) -> int:
        return sum(item.kind.durable and not item.ends for item in self.items.values())


def _settle(item: Item, job: Job) -> None:
    item.crashes = job.crashes
    item.reason = job.reason
    if job.state is JobState.DEAD_LETTER:
        item.ends.append(End.DEAD)
    elif job.state.final:
        # A job's history has one line for each time it was completed.
        completions = sum(entry.outcome == "completed" for entry in job.history)
        item.ends.extend([End.ANSWERED] * max(1, completions))
        if job.model is not None:
            item.wrong_answers = int(not is_answer_to(item.name, _text(job.result)))


def question_of(job: Job) -> str:
    """The item's name; a job that asks no model is named by its task."""
    match job.input:
        case {"messages": [*_, {"content": str(text)}]}:
            return text
    return job.task


def is_answer_to(question: str, text: str) -> bool:
    """The simulated provider repeats the question before its mark."""
    return text.startswith(f"simulated answer to: {question} [")


def _text(result: Any) -> str:
    match result:
        case {"choices": [{"message": {"content": str(text)}}, *_]}:
            return text
    return ""
