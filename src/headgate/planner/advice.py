"""Which setting to change: found by trying. Each candidate runs under the same seeds; what helps is pushed further."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headgate.planner.books import DEAD, EXPIRED, FAILED
from headgate.planner.pressure import INTERVAL, PAUSE, REQUESTS, TOKENS, WORKERS, Pressure, Values
from headgate.planner.run import Bench, Changes
from headgate.planner.scenario import Scenario
from headgate.planner.summary import Summary, play

MOST_ITEMS: Final = 500
LONGEST_S: Final = 900.0
"""A load of more than so many items, or that takes longer, is tried by its first part."""
MOST_RUNS: Final = 3
MOST_STEPS: Final = 4
WORTH: Final = 0.05
"""A gain below this share is none."""


class Step(msgspec.Struct, frozen=True):
    """One setting changed, and what came of it."""

    setting: str
    before: float | None
    after: float
    was: Summary
    now: Summary


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What helps most, step by step; what else would; what was tried in vain."""

    tried_items: int
    base: Summary
    steps: Sequence[Step]
    others: Sequence[Step]
    in_vain: Sequence[tuple[str, float]]
    """Settings and the values that were tried."""


def advise(
    bench: Bench, scenario: Scenario, found: Summary, *, changes: Changes, seed: int, runs: int
) -> Advice:
    """Try one change at a time, then more of the one that helps most. `found` is how it goes without any."""
    part = scenario.cut(min(1.0, MOST_ITEMS / scenario.count, LONGEST_S / max(1.0, found.span_s)))
    trial = _Trials(bench, part, seed, min(runs, MOST_RUNS, max(1, MOST_ITEMS // part.count)))
    base = trial.play(changes)
    tried = [
        trial.step(changes, base, name, value) for name, value in _candidates(bench, part, changes, base)
    ]
    helpful = sorted((step for step in tried if gain(step.was, step.now) >= WORTH), key=_worth, reverse=True)
    steps = list(trial.further(changes, helpful[0])) if helpful else []
    return Advice(
        tried_items=part.count,
        base=base,
        steps=steps,
        others=helpful[1:],
        in_vain=[(step.setting, step.after) for step in tried if step not in helpful],
    )


class _Trials:
    """Plays one scenario under the same seeds again and again."""

    def __init__(self, bench: Bench, scenario: Scenario, seed: int, runs: int) -> None:
        self._bench = bench
        self._scenario = scenario
        self._seed = seed
        self._runs = runs

    def play(self, changes: Changes) -> Summary:
        return play(self._bench, self._scenario, changes=changes, seed=self._seed, runs=self._runs)[0]

    def step(self, changes: Changes, was: Summary, name: str, value: float) -> Step:
        before = self._bench.values(changes)[name]
        return Step(name, before, value, was, self.play({**changes, name: value}))

    def further(self, changes: Changes, first: Step) -> Iterator[Step]:
        """The same again, by the same factor, while it is worth it."""
        step = first
        yield step
        for _ in range(MOST_STEPS - 1):
            if not step.before:
                return
            value = step.after * step.after / step.before
            if isinstance(step.after, int):
                value = max(1, round(value))
            if value == step.after:
                return
            step = self.step({**changes, step.setting: step.after}, step.now, step.setting, value)
            if gain(step.was, step.now) < WORTH:
                return
            yield step


def gain(was: Summary, now: Summary) -> float:
    """By what share the second is better: fewer lost first, then sooner done, then shorter waits."""
    lost = (was.lost - now.lost) / was.items
    if abs(lost) >= 0.005:
        return lost + (1.0 if lost > 0 else -1.0)
    sooner = 1 - now.span_s / was.span_s if was.span_s else 0.0
    if abs(sooner) >= WORTH:
        return sooner
    shorter = 1 - now.p99_wait_s / was.p99_wait_s if was.p99_wait_s > 0.01 * was.span_s else 0.0
    # Waits count for less: whoever shortens the whole shortens them too.
    return shorter / 2


def _worth(step: Step) -> float:
    return gain(step.was, step.now)


def _candidates(
    bench: Bench, scenario: Scenario, changes: Changes, base: Summary
) -> Iterator[tuple[str, float]]:
    """One step for each setting that could matter, given how the run went."""
    values = bench.values(changes)
    jobs = any(load.kind == "jobs" for load in scenario.loads)
    yield from _more_at_once(values, base, jobs=jobs)
    yield from _other_pacing(values, scenario, base)
    yield from _more_patience(values, base, jobs=jobs)


def _more_at_once(values: Values, base: Summary, *, jobs: bool) -> Iterator[tuple[str, float]]:
    slots = int(values["slots"] or 1)
    yield "slots", slots * 2
    if slots > 1 and _felt(base.pressures, PAUSE):
        yield "slots", slots // 2
    if values["reserved_slots"]:
        yield "reserved_slots", 0
    if jobs:
        yield WORKERS, int(values[WORKERS] or 1) * 2


def _other_pacing(values: Values, scenario: Scenario, base: Summary) -> Iterator[tuple[str, float]]:
    if interval_s := values[INTERVAL]:
        yield INTERVAL, interval_s / 2
    for name in (REQUESTS, TOKENS):
        if value := values[name]:
            yield name, int(value) * 2
    shape = scenario.upstream
    if shape is None or not _felt(base.pressures, PAUSE):
        return
    # Pacing at the upstream's own limit spares the pauses that follow each step over it.
    if shape.requests_per_minute is not None:
        yield INTERVAL, round(60 / shape.requests_per_minute, 3)
    if shape.tokens_per_minute is not None:
        yield TOKENS, shape.tokens_per_minute


def _more_patience(values: Values, base: Summary, *, jobs: bool) -> Iterator[tuple[str, float]]:
    """For what was lost: more room, more attempts, more time; and shorter waits where there were any."""
    lost_by = {
        "depth": base.refusals.get("queue_full"),
        "max_attempts": base.ends.get(FAILED),
        "jobs.max_attempts": base.ends.get(DEAD),
        "total_s": base.ends.get(EXPIRED) or base.ends.get(DEAD),
    }
    for name, lost in lost_by.items():
        if lost and (value := values[name]):
            yield name, value * 2
    name = "jobs.first_wait_s" if jobs else "first_wait_s"
    if base.retries and (wait_s := values[name]):
        yield name, wait_s / 2


def _felt(found: Sequence[Pressure], limit: str) -> float:
    return next((pressure.share for pressure in found if pressure.limit == limit), 0.0)
