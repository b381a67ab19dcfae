"""What several runs of one scenario say together: medians, ranges, and chances with the doubt that few runs leave."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Final

import msgspec

from headgate.planner.books import ANSWERED, EXPIRED, UNFINISHED
from headgate.planner.pressure import Pressure, pressures
from headgate.planner.run import Bench, Changes, Run, run_alone, run_once
from headgate.planner.scenario import Scenario

MOST_RUNS: Final = 20
CHEAP: Final = 10_000
"""All runs together cost about as much as so many items."""
_UNITS: Final = ((36_000.0, 3600.0, "hours"), (300.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
_Z95: Final = 1.96


class Chance(msgspec.Struct, frozen=True):
    """So many of so many runs, and where the true share lies with 95 % confidence."""

    times: int
    of: int
    low: float
    high: float


class Waits(msgspec.Struct, frozen=True):
    """From arrival to the beginning of the call that answered, over all answered items of one lane."""

    lane: str
    p50_s: float
    p99_s: float


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate knew of one upstream at the end of the first run, and what is common to all runs."""

    upstream: str
    state: str
    limit: str
    """In words; empty: none."""
    limited_runs: int
    """Runs that ended with a limit."""
    refused_share: float
    """The share of its last calls that it refused, the mean over the runs."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Counts are means over the runs; `span_s`, `p50_s` and `p99_s` are medians."""

    runs: int
    items: int
    span_s: float
    span_low_s: float
    span_high_s: float
    ends: Mapping[str, float]
    waits: Sequence[Waits]
    p50_s: float | None
    """From the arrival to the answer, of those that were answered."""
    p99_s: float | None
    calls: float
    throttled: float
    """Of these calls, answered with 429."""
    retries: float
    fallbacks: float
    put_back: float
    refusals: Mapping[str, float]
    cost_usd: float | None
    late: Chance | None
    """Runs that were not finished by `finish_by_s`."""
    missed_deadline: tuple[float, float, float] | None
    """The share of callers whose own deadline passed: the mean, the least and the most of all runs."""
    pressures: Sequence[Pressure] = ()
    learned: Sequence[Learned] = ()

    @property
    def answered(self) -> float:
        return self.ends.get(ANSWERED, 0.0)

    @property
    def lost(self) -> float:
        return self.items - self.answered

    @property
    def p99_wait_s(self) -> float:
        """The worst of the lanes."""
        return max((waits.p99_s for waits in self.waits), default=0.0)

    @property
    def finished(self) -> bool:
        return not self.ends.get(UNFINISHED)


def play(
    bench: Bench, scenario: Scenario, *, changes: Changes, seed: int, runs: int | None
) -> tuple[Summary, Run]:
    """The scenario under so many seeds, or as many as are cheap; and the first of its runs."""
    first = run_once(bench, scenario, changes=changes, seed=seed)
    if runs is None:
        most = MOST_RUNS if scenario.by_chance else 1
        runs = max(1, min(most, int(CHEAP / scenario.cost(first.span_s))))
    more = [run_once(bench, scenario, changes=changes, seed=seed + number) for number in range(1, runs)]
    found, values = [first, *more], bench.values(changes)
    summary = msgspec.structs.replace(
        summarise(found, scenario), pressures=pressures(found, scenario, values), learned=_learned(found)
    )
    return summary, first


def play_alone(bench: Bench, scenario: Scenario, *, changes: Changes, seed: int, runs: int) -> Summary:
    """The same callers, under the same seeds, with the SDK and no gateway."""
    seeds = range(seed, seed + runs)
    return summarise([run_alone(bench, scenario, changes=changes, seed=each) for each in seeds], scenario)


def summarise(runs: Sequence[Run], scenario: Scenario) -> Summary:
    spans = [run.span_s for run in runs]
    late = None
    if (finish_by_s := scenario.finish_by_s) is not None:
        late = chance(sum(span_s > finish_by_s for span_s in spans), len(runs))
    costs = [run.books.cost_usd for run in runs if run.books.cost_usd is not None]
    return Summary(
        runs=len(runs),
        items=scenario.count,
        span_s=median(spans),
        span_low_s=min(spans),
        span_high_s=max(spans),
        ends=_mean_counts([Counter(item.end for item in run.books.items) for run in runs]),
        waits=_waits(runs),
        p50_s=_took(runs, 0.5),
        p99_s=_took(runs, 0.99),
        calls=fmean(sum(upstream.calls for upstream in run.books.upstreams.values()) for run in runs),
        throttled=fmean(sum(upstream.throttled for upstream in run.books.upstreams.values()) for run in runs),
        retries=fmean(run.books.retries for run in runs),
        fallbacks=fmean(run.books.fallbacks for run in runs),
        put_back=fmean(run.books.put_back for run in runs),
        refusals=_mean_counts([run.books.refusals for run in runs]),
        cost_usd=fmean(costs) if costs else None,
        late=late,
        missed_deadline=_missed(runs),
    )


def chance(times: int, of: int) -> Chance:
    """A share of few runs, with Wilson's interval: it stays honest at none and at all."""
    share, square = times / of, _Z95**2
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = _Z95 / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of**2))
    return Chance(times, of, max(0.0, middle - half), min(1.0, middle + half))


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def unit_for(longest_s: float) -> tuple[float, str]:
    """The unit in which lengths of time up to this one read best: its seconds and its name."""
    return next((size_s, name) for least_s, size_s, name in _UNITS if longest_s >= least_s)


def _waits(runs: Sequence[Run]) -> list[Waits]:
    """Medians over the runs."""
    found: dict[str, list[list[float]]] = {}
    for run in runs:
        by_lane: dict[str, list[float]] = {}
        for item in run.books.items:
            if item.end == ANSWERED:
                by_lane.setdefault(str(item.lane), []).append(item.wait_s)
        for lane, waits in by_lane.items():
            found.setdefault(lane, []).append(waits)
    return [
        Waits(lane, *(median(percentile(waits, share) for waits in by_run) for share in (0.5, 0.99)))
        for lane, by_run in sorted(found.items(), reverse=True)
    ]


def _took(runs: Sequence[Run], share: float) -> float | None:
    """The median over the runs that answered anything."""
    took = [[item.took_s for item in run.books.items if item.end == ANSWERED] for run in runs]
    return median(percentile(of_run, share) for of_run in took if of_run) if any(took) else None


def _learned(runs: Sequence[Run]) -> list[Learned]:
    return [
        Learned(
            upstream=first.upstream,
            state=first.state,
            limit=first.limit,
            limited_runs=sum(bool(run.learned[place].limit) for run in runs),
            refused_share=fmean(run.learned[place].refused_share for run in runs),
        )
        for place, first in enumerate(runs[0].learned)
    ]


def _missed(runs: Sequence[Run]) -> tuple[float, float, float] | None:
    """Of those who have a deadline. A caller that was refused or failed did not miss it: it was told early."""
    shares = []
    for run in runs:
        hurried = [item.end == EXPIRED for item in run.books.items if item.hurried]
        if hurried:
            shares.append(fmean(hurried))
    return (fmean(shares), min(shares), max(shares)) if shares else None


def _mean_counts(counts: Sequence[Counter[str]]) -> dict[str, float]:
    names = sorted({name for count in counts for name in count})
    return {name: fmean(count[name] for count in counts) for name in names}
