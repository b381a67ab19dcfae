"""Which setting to change: found by trying. Each candidate runs under the same seeds; what helps is pushed further."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headgate.core.errors import SettingsError
from headgate.planner.books import DEAD, EXPIRED, FAILED
from headgate.planner.pressure import INTERVAL, PAUSE, REQUESTS, TIGHT, TOKENS, WORKERS, Pressure, Values
from headgate.planner.run import Bench, Changes
from headgate.planner.scenario import Scenario
from headgate.planner.summary import Summary, play

CHEAP: Final = 800
"""A load that costs more than so many items is tried by its first part."""
MOST_RUNS: Final = 5
MOST_STEPS: Final = 3
WORTH: Final = 0.05
"""A gain below this share is none."""


class Change(msgspec.Struct, frozen=True):
    """One setting and what it was."""

    setting: str
    before: float | None
    after: float


class Step(msgspec.Struct, frozen=True):
    """One setting changed, or several that only help together, and what came of it."""

    changes: Sequence[Change]
    was: Summary
    now: Summary

    @property
    def settings(self) -> Changes:
        return {change.setting: change.after for change in self.changes}


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What helps most, step by step; what else would; what was tried in vain."""

    tried_items: int
    base: Summary
    steps: Sequence[Step]
    others: Sequence[Step]
    in_vain: Sequence[Change]


def advise(bench: Bench, scenario: Scenario, found: Summary, *, changes: Changes, seed: int) -> Advice:
    """Try one change at a time, then more of the one that helps most. `found` is how it goes without any."""
    share = min(1.0, CHEAP / scenario.cost(found.span_s))
    part = scenario.cut(share)
    affordable = max(1, int(CHEAP / part.cost(found.span_s * share)))
    trial = _Trials(bench, part, seed, min(found.runs, MOST_RUNS, affordable))
    base = trial.play(changes)
    candidates = [
        (name, value)
        for name, value in _candidates(bench, part, changes, base)
        if _possible(bench, {**changes, name: value})
    ]
    tried = [trial.step(changes, base, {name: value}) for name, value in candidates]
    helpful = sorted(filter(_helps, tried), key=_worth, reverse=True)
    together = _tight_together(base, candidates)
    if not helpful and len(together) > 1:
        helpful = [step for step in [trial.step(changes, base, together)] if _helps(step)]
    return Advice(
        tried_items=part.count,
        base=base,
        steps=list(trial.further(changes, helpful[0])) if helpful else (),
        others=helpful[1:],
        in_vain=[step.changes[0] for step in tried if not _helps(step)],
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

    def step(self, changes: Changes, was: Summary, new: Changes) -> Step:
        values = self._bench.values(changes)
        made = [Change(name, values[name], value) for name, value in new.items()]
        return Step(made, was, self.play({**changes, **new}))

    def further(self, changes: Changes, step: Step) -> Iterator[Step]:
        """The same again, by the same factor, while it is worth it."""
        yield step
        for _ in range(MOST_STEPS - 1):
            new = {change.setting: _next(change) for change in step.changes}
            changes = {**changes, **step.settings}
            if new == step.settings or not _possible(self._bench, {**changes, **new}):
                return
            step = self.step(changes, step.now, new)
            if not _helps(step):
                return
            yield step


def _possible(bench: Bench, changes: Changes) -> bool:
    """Settings have bounds, and some bound each other."""
    try:
        bench.values(changes)
    except SettingsError:
        return False
    return True


def _next(change: Change) -> float:
    if not change.before:
        return change.after
    value = change.after * change.after / change.before
    return max(1, round(value)) if isinstance(change.after, int) else value


def _tight_together(base: Summary, candidates: Sequence[tuple[str, float]]) -> Changes:
    """Limits that are tight at once: easing one of them alone shows nothing."""
    tight = {pressure.limit for pressure in base.pressures if pressure.share >= TIGHT}
    together: dict[str, float] = {}
    for name, value in candidates:
        if name in tight:
            together.setdefault(name, value)
    return together


def gain(was: Summary, now: Summary) -> float:
    """By what share the second is better: fewer lost, then sooner done, then shorter waits.

    Who is late already wants to be sooner first, as long as no more is lost by it.
    """
    lost, sooner = _fewer_lost(was, now), _sooner(was, now)
    if lost < 0:
        return lost - 1
    if sooner and (not lost or (was.late is not None and was.late.times)):
        return sooner
    if lost:
        return lost + 1
    shorter = 1 - now.p99_wait_s / was.p99_wait_s if was.p99_wait_s > 0.01 * was.span_s else 0.0
    # Waits count for less: whoever shortens the whole shortens them too.
    return shorter / 2


def _fewer_lost(was: Summary, now: Summary) -> float:
    """As a share of all; 0 where chance alone may have done it."""
    fewer = was.lost - now.lost
    told = abs(fewer) >= 0.005 * was.items and abs(fewer) >= 0.2 * max(was.lost, now.lost)
    return fewer / was.items if told else 0.0


def _sooner(was: Summary, now: Summary) -> float:
    sooner = 1 - now.span_s / was.span_s if was.span_s else 0.0
    return sooner if abs(sooner) >= WORTH else 0.0


def _worth(step: Step) -> float:
    return gain(step.was, step.now)


def _helps(step: Step) -> bool:
    return _worth(step) >= WORTH


def _candidates(
    bench: Bench, scenario: Scenario, changes: Changes, base: Summary
) -> Iterator[tuple[str, float]]:
    """One step for each setting that could matter, given how the run went."""
    values = bench.values(changes)
    yield from _more_at_once(values, base, jobs=scenario.has_jobs)
    yield from _other_pacing(values, scenario, base)
    yield from _more_patience(values, base, jobs=scenario.has_jobs)


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
        "max_attempts": base.ends.get(FAILED) or base.refusals.get("upstream_throttled"),
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
