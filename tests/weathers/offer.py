"""An open-loop load, and what became of it. The clock is an argument: real and virtual runs share this."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from headgate.core.ports.clock import Clock
from weathers.table import PATIENCE_S, Arrival

ANSWERED: Final = ""
TOO_LATE: Final = "no answer in time"
Ask = Callable[[Arrival], Awaitable[str]]
"""Make one call: ANSWERED, or why there is no answer."""


@dataclass(slots=True)
class Outcome:
    """One run: what the callers got, and what the upstreams saw."""

    offered: int
    took_s: list[float] = field(default_factory=list)
    """Of the answered calls."""
    refused: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    """At all upstreams together."""
    patience_s: float = PATIENCE_S

    @property
    def answered(self) -> int:
        return len(self.took_s)

    @property
    def share(self) -> float:
        return self.answered / self.offered

    @property
    def calls_per_answer(self) -> float:
        return self.calls / max(1, self.answered)

    def percentile_s(self, share: float) -> float:
        """A call without an answer counts as the whole patience."""
        ordered = sorted(self.took_s) + [self.patience_s] * (self.offered - self.answered)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def to_json(self) -> dict[str, Any]:
        # asdict would rebuild the Counter from pairs and count those.
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "refused": dict(self.refused),
        }

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> "Outcome":
        return cls(**{**read, "refused": Counter(read["refused"])})


async def offer(
    arrivals: Iterable[Arrival], ask: Ask, clock: Clock, *, patience_s: float = PATIENCE_S
) -> Outcome:
    """Call at each arrival time, whatever becomes of earlier calls; return when all are over."""
    due = list(arrivals)
    outcome = Outcome(len(due), patience_s=patience_s)
    begin = clock.now()

    async def visit(arrival: Arrival) -> None:
        end = TOO_LATE
        try:
            async with asyncio.timeout(patience_s):
                end = await ask(arrival)
        except TimeoutError:
            pass
        if end == ANSWERED:
            # From when it was due: a client that is held up counts, too.
            outcome.took_s.append(clock.now() - begin - arrival.at)
        else:
            outcome.refused[end] += 1

    async with asyncio.TaskGroup() as group:
        for arrival in due:
            if (ahead_s := begin + arrival.at - clock.now()) > 0:
                await clock.sleep(ahead_s)
            group.create_task(visit(arrival))
    return outcome


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
