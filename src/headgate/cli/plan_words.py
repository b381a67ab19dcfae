"""A plan in words: lengths of time, loads, upstreams, what holds it up, what to change."""

from collections.abc import Mapping
from typing import Final

from headgate.calls.status import State
from headgate.planner.advice import Advice, Change, Step
from headgate.planner.pressure import (
    BREAKER,
    INTERVAL,
    LOAD,
    PAUSE,
    REQUESTS,
    SLOTS,
    TOKENS,
    UPSTREAM_IN_FLIGHT,
    UPSTREAM_REQUESTS,
    UPSTREAM_TOKENS,
    WORKERS,
    tightest,
)
from headgate.planner.scenario import Load, Scenario, UpstreamShape, read_latency
from headgate.planner.summary import Chance, Learned, Summary

_SHOWN: Final = ("slots", "reserved_slots", "depth", "interval_s", "requests_per_minute", "tokens_per_minute")
_OF_CALLS: Final = ("max_attempts", "first_wait_s", "total_s")
_OF_JOBS: Final = ("jobs.workers", "jobs.max_attempts", "jobs.first_wait_s")


def length(seconds: float) -> str:
    """`850 ms`, `12.5 s`, `5 min 12 s`, `1 h 12 min`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def amount(number: float) -> str:
    """A mean count: whole where it is whole."""
    return f"{number:,.0f}" if abs(number - round(number)) < 0.05 else f"{number:,.1f}"


def percent(share: float) -> str:
    digits = 1 if 0 < share < 0.0995 else 0
    return f"{share * 100:.{digits}f}".removesuffix(".0") + " %"


def load_in_words(load: Load) -> str:
    what = {"jobs": "jobs", "calls": "calls", "many": "items in one complete_many"}[load.kind]
    if load.count == 1:
        what = what.replace("jobs", "job").replace("calls", "call").replace("items", "item")
    parts = [f"{load.count:,} {what}"]
    if load.per_s is not None:
        parts.append(f"{load.per_s:g} per second")
    elif load.burst is not None and load.every_s is not None:
        parts.append(f"{load.burst} every {length(load.every_s)}")
    elif load.kind != "many":
        parts[0] += " at once"
    if load.start_s:
        parts.append(f"from {length(load.start_s)} on")
    parts.append(f"{load.its_lane} lane")
    if load.deadline_s is not None:
        parts.append(f"deadline {length(load.deadline_s)}")
    if load.come_back:
        parts.append("who is refused comes back")
    return ", ".join(parts)


def shape_in_words(shape: UpstreamShape, tokens_out: int) -> str:
    latency = read_latency(shape.latency, shape.first_token_s, tokens_out)
    spread = f" (p99 {length(latency.p99_s)})" if latency.sigma else ""
    parts = [f"{length(latency.median_s)}{spread} per call"]
    if shape.throttled:
        parts.append(f"{percent(shape.throttled)} throttled")
    if shape.failing:
        parts.append(f"{percent(shape.failing)} failing")
    if shape.requests_per_minute is not None:
        parts.append(f"at most {shape.requests_per_minute:,} requests a minute")
    if shape.tokens_per_minute is not None:
        parts.append(f"at most {shape.tokens_per_minute:,} tokens a minute")
    if shape.requests_per_second is not None:
        parts.append(f"at most {shape.requests_per_second:,} requests a second")
    if shape.requests_per_window is not None:
        requests, span_s = shape.requests_per_window
        parts.append(f"at most {requests:,} requests per window of {length(span_s)}")
    if shape.max_in_flight is not None:
        parts.append(f"at most {shape.max_in_flight:,} calls at one time")
    if shape.retry_after_s is not None:
        parts.append(f"a 429 asks to wait {length(shape.retry_after_s)}")
    parts += [f"down from {length(start)} to {length(end)}" for start, end in shape.outages]
    return ", ".join(parts)


def settings_in_words(values: Mapping[str, float | None], scenario: Scenario) -> str:
    kinds = {load.kind for load in scenario.loads}
    names = (*_SHOWN, *(_OF_CALLS if kinds - {"jobs"} else ()), *(_OF_JOBS if "jobs" in kinds else ()))
    return ", ".join(f"{name} {values[name]:g}" for name in names if name == "depth" or values[name])


def chance_in_words(chance: Chance, scenario: Scenario) -> str:
    finish_by_s = scenario.finish_by_s or 0.0
    if not scenario.by_chance:
        return (
            f"{length(finish_by_s)} is {'missed' if chance.times else 'met'}; nothing here is left to chance"
        )
    if not chance.times:
        runs = "the one run" if chance.of == 1 else f"all {chance.of} runs"
        return f"{length(finish_by_s)} is met in {runs} (chance to miss it: at most {percent(chance.high)}, 95 % sure)"
    share = f"{percent(chance.times / chance.of)}; {percent(chance.low)} to {percent(chance.high)}, 95 % sure"
    return f"{length(finish_by_s)} is missed in {chance.times} of {chance.of} runs ({share})"


def limit_in_words(summary: Summary, values: Mapping[str, float | None]) -> str:
    """What holds the work up."""
    felt = {pressure.limit: pressure.share for pressure in summary.pressures}
    blamed = tightest(summary.pressures)
    if blamed is None and felt.get(LOAD, 0.0) >= 0.8:
        return f"nothing: the work takes that long to arrive, and slots are busy {percent(felt.get(SLOTS, 0.0))} of the time"
    if blamed is None:
        return f"no single one: slots are busy {percent(felt.get(SLOTS, 0.0))} of the time, the rest are waits between attempts"
    share = percent(blamed.share)
    value = f"{values.get(blamed.limit) or 0:g}"
    return {
        SLOTS: f"slots: with {value} of them, they are busy {share} of the time",
        WORKERS: f"jobs.workers: with {value} of them, they are busy {share} of the time",
        INTERVAL: f"interval_s: starts {value} s apart take {share} of the time by themselves",
        REQUESTS: f"requests_per_minute: our own pacing takes {share} of the time",
        TOKENS: f"tokens_per_minute: our own pacing takes {share} of the time",
        UPSTREAM_REQUESTS: f"the upstream: its limit of requests takes {share} of the time by itself",
        UPSTREAM_TOKENS: f"the upstream: its tokens a minute take {share} of the time by themselves",
        UPSTREAM_IN_FLIGHT: f"the upstream: the calls that it takes at one time are in use {share} of the time",
        PAUSE: f"the upstream: it was closed because it throttled for {share} of the time",
        BREAKER: f"the upstream: it was closed because it failed for {share} of the time",
    }[blamed.limit]


def learned_in_words(learned: Learned, runs: int) -> str:
    """What the gate knew of an upstream at the end."""
    share = f"{percent(learned.refused_share)} of the last calls were refused"
    some = learned.refused_share >= 0.005
    if learned.state != State.OPEN:
        return learned.state + (f"; {learned.limit}" if learned.limit else "")
    if not learned.limit:
        return f"no limit; {share}" if some else "no limit"
    of_runs = f" (first run; {learned.limited_runs} of {runs} have a limit)" if runs > 1 else ""
    return learned.limit + of_runs + (f"; {share}" if some else "")


def step_in_words(step: Step) -> str:
    parts = []
    if abs(step.was.lost - step.now.lost) >= 0.005 * step.was.items:
        parts.append(f"{amount(step.was.lost)} → {amount(step.now.lost)} lost")
    if abs(step.was.span_s - step.now.span_s) >= 0.05 * step.was.span_s:
        parts.append(f"{length(step.was.span_s)} → {length(step.now.span_s)}")
    if not parts:
        parts.append(f"p99 wait {length(step.was.p99_wait_s)} → {length(step.now.p99_wait_s)}")
    return f"{' and '.join(map(_change, step.changes))}: {', '.join(parts)}"


def _change(change: Change) -> str:
    before = "none" if change.before is None else f"{change.before:g}"
    return f"{change.setting} {before} → {change.after:g}"


def beyond_in_words(advice: Advice, values: Mapping[str, float | None]) -> str | None:
    """What is the limit after the last step that helped."""
    last = advice.steps[-1]
    blamed = tightest(last.now.pressures)
    if blamed is None or blamed.limit in last.settings:
        return None
    return f"after that, {limit_in_words(last.now, {**values, **last.settings})}"
