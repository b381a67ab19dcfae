"""What held a run up: how much of its time each limit was used to the full."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import msgspec

from headgate.core.call import Lane
from headgate.planner.books import UpstreamBooks
from headgate.planner.run import Run
from headgate.planner.scenario import Scenario, UpstreamShape

TIGHT: Final = 0.6
"""A limit that was used to this share of the time is what holds the work up."""
MINUTE_S: Final = 60.0

SLOTS: Final = "slots"
WORKERS: Final = "jobs.workers"
INTERVAL: Final = "interval_s"
REQUESTS: Final = "requests_per_minute"
TOKENS: Final = "tokens_per_minute"
UPSTREAM_REQUESTS: Final = "upstream requests"
UPSTREAM_TOKENS: Final = "upstream tokens"
UPSTREAM_IN_FLIGHT: Final = "upstream calls in flight"
"""The upstream's own limits, as they were described."""
PAUSE: Final = "pause"
"""The upstream was closed because it throttled."""
BREAKER: Final = "breaker"
"""It was closed because it failed."""
LOAD: Final = "load"
"""The work itself takes so long to arrive."""

Values = Mapping[str, float | None]


class Pressure(msgspec.Struct, frozen=True):
    """A limit and the share of the time it was used to the full."""

    limit: str
    share: float


def pressures(runs: Sequence[Run], scenario: Scenario, values: Values) -> list[Pressure]:
    """All limits that were felt, the tightest first."""
    found = [_of_run(run, scenario, values) for run in runs]
    means = {name: fmean(shares[name] for shares in found) for name in found[0]}
    felt = [Pressure(name, min(1.0, share)) for name, share in means.items() if share > 0]
    return sorted(felt, key=lambda pressure: -pressure.share)


def tightest(found: Sequence[Pressure]) -> Pressure | None:
    """What to blame: the load only where nothing else is tight."""
    blamed = [pressure for pressure in found if pressure.limit != LOAD and pressure.share >= TIGHT]
    return blamed[0] if blamed else None


def _of_run(run: Run, scenario: Scenario, values: Values) -> dict[str, float]:
    span_s = max(run.span_s, 1e-9)
    name, first = max(
        run.books.upstreams.items(), key=lambda named: named[1].calls, default=("", UpstreamBooks())
    )
    set_to = {setting: value or 0.0 for setting, value in values.items()}
    shape = scenario.upstreams.get(name) or scenario.upstream or UpstreamShape(latency=1)
    open_s = first.open_s + (0.0 if math.isnan(first.opened_at) else run.span_s - first.opened_at)
    return {
        SLOTS: first.busy_s / (_slots(scenario, set_to) * span_s),
        WORKERS: first.busy_s / (set_to[WORKERS] * span_s) if _only_jobs(scenario) else 0.0,
        INTERVAL: set_to[INTERVAL] * first.calls / span_s,
        REQUESTS: _per_minute(first.calls, set_to[REQUESTS], span_s),
        TOKENS: _per_minute(first.tokens, set_to[TOKENS], span_s),
        UPSTREAM_REQUESTS: _upstream_requests(first.answered, shape, span_s),
        UPSTREAM_TOKENS: _per_minute(first.tokens, shape.tokens_per_minute or 0, span_s),
        UPSTREAM_IN_FLIGHT: first.busy_s / span_s / shape.max_in_flight if shape.max_in_flight else 0.0,
        PAUSE: min(first.paused_s, span_s) / span_s,
        BREAKER: open_s / span_s,
        LOAD: run.last_arrival_s / span_s,
    }


def _slots(scenario: Scenario, set_to: Mapping[str, float]) -> float:
    """Those that this load may use: batch alone never gets the reserved ones."""
    if any(load.its_lane is Lane.INTERACTIVE for load in scenario.loads):
        return set_to[SLOTS]
    return max(1.0, set_to[SLOTS] - set_to["reserved_slots"])


def _upstream_requests(answered: int, shape: UpstreamShape, span_s: float) -> float:
    """Of its limits of requests, the one that was used most."""
    windows, window_s = shape.requests_per_window or (0, 0.0)
    return max(
        _per_minute(answered, shape.requests_per_minute or 0, span_s),
        answered / shape.requests_per_second / span_s if shape.requests_per_second else 0.0,
        answered / windows * window_s / span_s if windows else 0.0,
    )


def _per_minute(used: float, limit: float, span_s: float) -> float:
    """The first minute's worth goes at once: only what is beyond it has to wait."""
    if not limit:
        return 0.0
    return max(0.0, used - limit) / limit * MINUTE_S / span_s


def _only_jobs(scenario: Scenario) -> bool:
    return all(load.kind == "jobs" for load in scenario.loads)
