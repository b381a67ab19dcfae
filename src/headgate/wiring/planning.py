"""Gateways for `headgate plan`: the user's settings as they are, with described upstreams and a database to throw away."""

import random
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from headgate.core.errors import SettingsError
from headgate.core.ports.provider import Provider
from headgate.core.spelling import did_you_mean
from headgate.gateway import Gateway
from headgate.observe.prices import Prices
from headgate.planner.run import Changes
from headgate.planner.scenario import Scenario, UpstreamShape, read_latency
from headgate.planner.virtual import World
from headgate.runner.tasks import Task
from headgate.settings import ModelSettings, Settings, UpstreamSettings
from headgate.stores.sqlite import SqliteStore
from headgate.wiring import build
from headgate.wiring.providers import PROVIDERS, ProviderKind, Surroundings, Transports

SIMULATED: Final = "simulated"
GATE: Final = ("slots", "reserved_slots", "depth", "promote_after_s", "hold_wait_s", "longest_pause_s")
PACING: Final = ("interval_s", "requests_per_minute", "tokens_per_minute")
RETRY: Final = ("max_attempts", "first_wait_s", "factor", "longest_wait_s")
TIMEOUTS: Final = ("total_s",)
JOBS: Final = ("workers", "timeout_s")
WHOLE: Final = frozenset(
    {
        "slots",
        "reserved_slots",
        "depth",
        "max_attempts",
        "workers",
        "requests_per_minute",
        "tokens_per_minute",
    }
)
OF_JOBS: Final = "jobs."
KNOBS: Final = (*GATE, *PACING, *RETRY, *TIMEOUTS, *(OF_JOBS + name for name in (*JOBS, *RETRY)))
"""The settings that a plan can change, those of the model's first upstream among them."""


@dataclass(frozen=True, slots=True)
class PlanBench:
    """The planner's `Bench` over one model of the settings."""

    settings: Settings
    model: str
    prices: Prices

    @property
    def upstreams(self) -> tuple[str, ...]:
        return tuple(_name(upstream) for upstream in self._model(self.settings).upstreams)

    def check(self, scenario: Scenario) -> None:
        """Every upstream must be described, and every description be of one that is there."""
        for name in scenario.upstreams:
            if name not in self.upstreams:
                known = ", ".join(self.upstreams)
                raise SettingsError(f"{self.model} has no upstream {name!r:.60}; it has {known}")
        for upstream in self._model(self.settings).upstreams:
            if upstream.provider != SIMULATED and _shape(scenario, upstream) is None:
                raise SettingsError(
                    f"say how {_name(upstream)} behaves: --latency 5, --latency 4/12 (median/p99)"
                    " or --latency '80 tokens/s'"
                )

    @asynccontextmanager
    async def open(
        self, world: World, scenario: Scenario, changes: Changes, task: Task[Any, Any]
    ) -> AsyncIterator[Gateway]:
        # Ids grow, as real ones do.
        new_id = map("{:020}".format, count()).__next__
        with tempfile.TemporaryDirectory(prefix="headgate-plan-", ignore_cleanup_errors=True) as folder:
            # What this machine has on its disk says nothing about the plan.
            limits = replace(self.settings.limits, min_free_bytes=0)
            settings = replace(self._changed(changes), data_dir=Path(folder), limits=limits)
            gateway = build(
                settings,
                clock=world.clock,
                chance=world.chance,
                new_id=new_id,
                providers=_described(scenario),
                store=SqliteStore(Path(folder) / "plan.db", clock=world.clock, new_id=new_id, lasting=False),
                tasks=[task],
                prices=self.prices,
            )
            try:
                yield gateway
            finally:
                await gateway.aclose(drain_s=0.0)

    def provider(self, world: World, scenario: Scenario) -> Provider:
        model = self._model(self.settings)
        first = model.upstreams[0]
        given = Surroundings(
            clock=world.clock, chance=world.chance, timeouts=model.timeouts, transports=Transports()
        )
        return _build(first.provider, scenario, first.model, first.options, given)

    def values(self, changes: Changes) -> Mapping[str, float | None]:
        settings = self._changed(changes)
        model = self._model(settings)
        gate = model.upstreams[0].gate
        return {
            **{name: getattr(gate, name) for name in GATE},
            **{name: getattr(gate.pacing, name) for name in PACING},
            **{name: getattr(model.retry, name) for name in RETRY},
            **{name: getattr(model.timeouts, name) for name in TIMEOUTS},
            **{OF_JOBS + name: getattr(settings.jobs, name) for name in JOBS},
            **{OF_JOBS + name: getattr(settings.jobs.retry, name) for name in RETRY},
        }

    def _model(self, settings: Settings) -> ModelSettings:
        return settings.models[self.model]

    def _changed(self, changes: Changes) -> Settings:
        """The settings with these changes, and without what no plan needs: apps and the user's own tasks."""
        values = {name: _typed(name, value) for name, value in changes.items()}
        model, jobs = self._model(self.settings), self.settings.jobs
        first = model.upstreams[0]
        pacing = replace(first.gate.pacing, **_of(values, PACING))
        gate = replace(first.gate, pacing=pacing, **_of(values, GATE))
        model = replace(
            model,
            upstreams=(replace(first, gate=gate), *model.upstreams[1:]),
            retry=replace(model.retry, **_of(values, RETRY)),
            timeouts=replace(model.timeouts, **_of(values, TIMEOUTS)),
        )
        retry = replace(jobs.retry, **_of(values, RETRY, OF_JOBS))
        jobs = replace(jobs, retry=retry, tasks=(), **_of(values, JOBS, OF_JOBS))
        return replace(self.settings, models={**self.settings.models, self.model: model}, jobs=jobs, apps={})


def open_bench(settings: Settings, model: str | None) -> PlanBench:
    """A bench for this model, or for the only one there is. Loads the price list."""
    own = [name for name in settings.models if name.partition("/")[0] != SIMULATED]
    if model is None:
        if len(own) > 1:
            raise SettingsError(f"which model? Say --model with one of {', '.join(own)}")
        model = own[0] if own else SIMULATED
    if model not in settings.models or model.endswith("/*"):
        members = f"; of a family ({model}), name it as a model of its own" if model.endswith("/*") else ""
        raise SettingsError(
            f"there is no model {model!r:.60} in the settings{did_you_mean(model, settings.models)}{members}"
        )
    prices = Prices()
    prices.load().join()
    return PlanBench(settings, model, prices)


def _of(values: Mapping[str, Any], names: tuple[str, ...], under: str = "") -> dict[str, Any]:
    return {name: values[under + name] for name in names if under + name in values}


def _typed(name: str, value: float) -> float | int:
    if name not in KNOBS:
        raise SettingsError(
            f"{name!r:.60} cannot be changed by a plan{did_you_mean(name, KNOBS)}; what can: {', '.join(KNOBS)}"
        )
    if name.removeprefix(OF_JOBS) not in WHOLE:
        return value
    if value != int(value):
        raise SettingsError(f"{name}: must be a whole number, not {value:g}")
    return int(value)


def _name(upstream: UpstreamSettings) -> str:
    return "/".join(filter(None, (upstream.provider, upstream.model)))


def _shape(scenario: Scenario, upstream: UpstreamSettings) -> UpstreamShape | None:
    return scenario.upstreams.get(_name(upstream), scenario.upstream)


def _described(scenario: Scenario) -> Mapping[str, ProviderKind]:
    """Under every provider's name, one that behaves as described. Names and prices stay what they are."""
    return {
        name: ProviderKind(partial(_build, name, scenario), kind.check) for name, kind in PROVIDERS.items()
    }


def _build(
    provider: str, scenario: Scenario, model: str | None, options: Mapping[str, Any], given: Surroundings
) -> Provider:
    shape = _shape(scenario, UpstreamSettings(provider=provider, model=model))
    simulated = PROVIDERS[SIMULATED].build
    # Chance of its own: its latencies and failures come in the same order, whatever the settings are.
    given = replace(given, chance=random.Random(given.chance()).random)
    if shape is None:
        # Simulated in the settings too: it is described there. Nobody plans a call to any other without a shape.
        return simulated(model, options, given) if provider == SIMULATED else simulated(None, {}, given)
    return simulated(None, simulated_options(shape, scenario.tokens_out), given)


def simulated_options(shape: UpstreamShape, tokens_out: int) -> dict[str, Any]:
    """A description in the words of the simulated provider."""
    latency = read_latency(shape.latency, shape.first_token_s, tokens_out)
    return {
        "latency_s": latency.mean_s,
        "latency": "lognormal" if latency.sigma else "fixed",
        "latency_spread": latency.sigma,
        "failures": {"throttled": shape.throttled, "transient": shape.failing},
        "retry_after_s": shape.retry_after_s,
        "failure_latency_s": shape.failure_latency_s,
        "requests_per_minute": shape.requests_per_minute,
        "tokens_per_minute": shape.tokens_per_minute,
        "requests_per_second": shape.requests_per_second,
        "requests_per_window": shape.requests_per_window,
        "max_in_flight": shape.max_in_flight,
        "outage": list(shape.outages),
        "output_tokens": tokens_out,
    }
