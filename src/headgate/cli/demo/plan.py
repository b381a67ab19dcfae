"""The storm as values: how much of what comes when, how the upstreams behave, and the gateway's settings."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from headgate.cli.demo import tasks
from headgate.core.retry import RetryPolicy
from headgate.providers.simulated import LatencyShape, SimulatedOptions

CHAT: Final = "chat"
ARTICLES: Final = "articles"
"""The model of jobs and batches: the same upstreams, longer answers."""
PRIMARY: Final = "primary"
FALLBACK: Final = "fallback"
LONG: Final = "-long"
RETRY: Final = RetryPolicy(max_attempts=3, first_wait_s=0.3, longest_wait_s=2.0)
BURST_SHARE: Final = 0.25
"""This share of the calls comes within a moment, to fill the queue."""
STREAM_EVERY: Final = 4
TWINS: Final = 4
"""So many clients send the same key at once; one more sends it later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of one storm. Moments are shares of its time."""

    calls: int
    jobs: int
    lines: int
    keys: int
    seconds: float
    seed: int

    outage: tuple[float, float] = (0.22, 0.36)
    kill_at: float = 0.42
    burst_at: float = 0.55
    poison_at: float = 0.62
    mend_at: float = 0.75

    @property
    def answer_s(self) -> float:
        """How long an article takes: long enough to be running when a worker dies."""
        return min(1.5, max(0.2, self.seconds / 20))

    @property
    def burst(self) -> int:
        return int(self.calls * BURST_SHARE)

    def call_moments(self) -> list[float]:
        """When each call comes, in seconds, the earliest first."""
        chance = random.Random(f"calls {self.seed}")
        moments = [chance.uniform(0, self.seconds) for _ in range(self.calls - self.burst)]
        moments += [
            chance.uniform(self.burst_at, self.burst_at + 0.01) * self.seconds for _ in range(self.burst)
        ]
        return sorted(moments)

    def key_moments(self) -> list[float]:
        return [self.seconds * (0.1 + 0.7 * number / self.keys) for number in range(self.keys)]

    def job_moments(self) -> list[float]:
        """Over the first two thirds: then the rest can finish in time."""
        return [self.seconds * 0.66 * number / self.jobs for number in range(self.jobs)]


def primary_models(plan: Plan) -> dict[str, SimulatedOptions]:
    """Quick, but it throttles, fails and gives blank answers now and then."""
    failures = {"throttled": 0.015, "transient": 0.05, "invalid_output": 0.02}
    return _models(plan, PRIMARY, pace=1.0, failures=failures)


def fallback_models(plan: Plan) -> dict[str, SimulatedOptions]:
    return _models(plan, FALLBACK, pace=1.5, failures={"transient": 0.03})


def _models(
    plan: Plan, name: str, *, pace: float, failures: Mapping[str, float]
) -> dict[str, SimulatedOptions]:
    """The upstream's own names, under which the gateway shows it."""
    short = SimulatedOptions(
        latency_s=0.2 * pace,
        latency=LatencyShape.LOGNORMAL,
        failures=failures,
        failure_latency_s=0.05,
        retry_after_s=1.0,
        chunk_gap_s=0.02,
        seed=plan.seed,
    )
    return {name: short, name + LONG: replace(short, latency_s=plan.answer_s * pace)}


def gateway_settings(folder: Path, primary_url: str, fallback_url: str) -> dict[str, Any]:
    """What stands in the demo's `headgate.yaml`."""
    return {
        "listen": "127.0.0.1:0",
        "data_dir": str(folder / "data"),
        "models": {
            CHAT: _model(primary_url, fallback_url, ""),
            ARTICLES: _model(primary_url, fallback_url, LONG),
        },
        "jobs": {
            "workers": 16,
            "tasks": [tasks.__name__],
            "retry": {"max_attempts": 20, "first_wait_s": 0.3, "longest_wait_s": 2.0},
        },
    }


def _model(primary_url: str, fallback_url: str, ending: str) -> dict[str, Any]:
    upstream = {"provider": "openai", "depth": 24}
    return {
        "upstreams": [
            {**upstream, "model": PRIMARY + ending, "base_url": primary_url, "slots": 8},
            {**upstream, "model": FALLBACK + ending, "base_url": fallback_url, "slots": 6},
        ],
        "retry": {
            "max_attempts": RETRY.max_attempts,
            "first_wait_s": RETRY.first_wait_s,
            "longest_wait_s": RETRY.longest_wait_s,
        },
        "timeouts": {"total_s": 60},
    }
