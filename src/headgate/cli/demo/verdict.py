"""The judgement over the books. Pure: a lost or doubled item is found here or nowhere."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.cli.demo.books import Books, Counts, End, Item, Kind
from headgate.core.job import Reason

SHORTEST_PROMISE_S: Final = 1.0
LONGEST_PROMISE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Each finding is a sentence; without any, the storm was weathered."""

    accepted: Mapping[Kind, int]
    completed: int
    failed: int
    refused: int
    """Went away after a refusal, or several."""
    dead: Mapping[str, int]
    """Reason → dead letters at the end."""
    attempts: int
    """Calls that reached the providers."""
    asked: int
    """Questions that reached them."""
    lost: Sequence[str]
    doubled: Sequence[str]
    broken: Sequence[str]

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.broken)

    @property
    def amplification(self) -> float:
        return self.attempts / max(1, self.asked)


def judge(books: Books, providers: Sequence[Counts], *, max_attempts: int) -> Verdict:
    items = books.items.values()
    ends = Counter(end for item in items for end in item.ends)
    return Verdict(
        accepted={kind: sum(map(_accepted, books.of(kind))) for kind in Kind},
        completed=ends[End.ANSWERED],
        failed=ends[End.FAILED],
        refused=ends[End.REFUSED],
        dead=Counter(item.reason or "unknown" for item in items if End.DEAD in item.ends),
        attempts=sum(provider.arrived.total() for provider in providers),
        asked=len({name for provider in providers for name in provider.arrived}),
        lost=[word for item in items for word in _losses(item)],
        doubled=[word for item in items for word in _doubles(item, providers)],
        broken=[*books.broken, *_broken(books, providers, max_attempts)],
    )


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that this share of them does not exceed; 0 of none."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(len(ranked) * share) - 1)] if ranked else 0.0


def _accepted(item: Item) -> int:
    return item.askers - item.ends.count(End.REFUSED)


def _losses(item: Item) -> Iterator[str]:
    missing = item.askers - len(item.ends)
    if missing > 0:
        yield f"{item.name}: {missing} without an end"
    if unheard := item.ends.count(End.UNHEARD):
        yield f"{item.name}: {unheard} cut off without a word"


def _doubles(item: Item, providers: Sequence[Counts]) -> Iterator[str]:
    if len(item.ends) > item.askers:
        yield f"{item.name}: ended {len(item.ends)} times"
    if len(item.answer_ids) > 1:
        yield f"{item.name}: {len(item.answer_ids)} different answers under one key"
    answered = sum(provider.answered[item.name] for provider in providers)
    # A worker that dies between the answer and its record takes the answer along: that is paid again, once per death.
    if answered > 1 + item.crashes:
        yield f"{item.name}: answered {answered} times by providers, {item.crashes} crashes"


def _broken(books: Books, providers: Sequence[Counts], max_attempts: int) -> Iterator[str]:
    for wait_s in books.waits_s:
        if not SHORTEST_PROMISE_S <= wait_s <= LONGEST_PROMISE_S:
            yield f"a refusal promised {wait_s:g} s, not 1–60"
    for item in books.items.values():
        if item.wrong_answers:
            yield f"{item.name}: got the answer to another question"
        yield from _beyond_attempts(item, providers, max_attempts)
        yield from _unforeseen_end(item, books)
    for name in {name for provider in providers for name in provider.arrived} - set(books.items):
        yield f"a provider was asked {name!r}, which nobody asked"


def _beyond_attempts(item: Item, providers: Sequence[Counts], max_attempts: int) -> Iterator[str]:
    """Jobs have attempts of their own, on top of a call's."""
    if item.kind.durable:
        return
    most = max(provider.arrived[item.name] - provider.free[item.name] for provider in providers)
    if most > max_attempts * item.requests:
        yield f"{item.name}: {most} attempts that count at one upstream for {item.requests} requests"


def _unforeseen_end(item: Item, books: Books) -> Iterator[str]:
    dead = End.DEAD in item.ends
    if item.name == books.poison:
        if item.ends and not (dead and item.reason == Reason.POISON):
            yield f"{item.name}: kills its worker and was not set aside as poison"
    elif dead:
        yield f"{item.name}: a dead letter ({item.reason}) that nobody foresaw"
