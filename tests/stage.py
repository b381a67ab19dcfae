"""A real gateway on the simulated provider, in virtual time or on a real loop, and an open-loop load in front of it."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loops import World

from headgate import wiring
from headgate.core.answer import Reply
from headgate.core.errors import HeadgateError
from headgate.core.events import Event
from headgate.gateway import Gateway
from headgate.providers.simulated import SimulatedProvider

USER = [{"role": "user", "content": "Summarise this."}]
MOST_IN_A_ROW = 12
"""More refusals in a row than that are never taken for chance."""


@dataclass
class Stage:
    """One gateway with the model `m` in a world."""

    world: World
    gateway: Gateway
    events: list[Event] = field(default_factory=list)

    @property
    def provider(self) -> SimulatedProvider:
        return self.providers[0]

    @property
    def providers(self) -> list[SimulatedProvider]:
        found = [upstream.provider for upstream in self.gateway.routes.find("m").upstreams]
        assert all(isinstance(provider, SimulatedProvider) for provider in found)
        return found  # type: ignore[return-value]  # narrowed by the assertion above

    @property
    def free_slots(self) -> int:
        """Free slots of all of the model's gates; the built-in model `simulated` has its own."""
        return sum(gate.available_slots for gate in self.gateway.status().upstreams if gate.model == "m")

    @property
    def all_free(self) -> bool:
        gates = [gate for gate in self.gateway.status().upstreams if gate.model == "m"]
        return all(
            gate.available_slots == gate.total_slots and not gate.rt_queue + gate.be_queue for gate in gates
        )

    @property
    def now(self) -> float:
        return self.world.clock.now()


def set_stage(world: World, *upstreams: Mapping[str, Any], keep_events: bool = False, **model: Any) -> Stage:
    """A gateway whose model `m` has these upstreams (provider simulated unless said otherwise)."""
    listed = [{"provider": "simulated", **upstream} for upstream in upstreams]
    settings = wiring.read_settings({"models": {"m": {"upstreams": listed, **model}}}, env={})
    ids = iter(range(10**9))
    gateway = wiring.build(
        settings, clock=world.clock, chance=world.chance, new_id=lambda: f"request-{next(ids)}"
    )
    stage = Stage(world, gateway)
    if keep_events:
        gateway.listen(stage.events.append)
    return stage


@dataclass(slots=True)
class Visit:
    """One arrival of an open-loop load and what became of it."""

    at: float
    ended_at: float = math.nan
    reply: Reply | None = None
    error: HeadgateError | None = None

    @property
    def latency_s(self) -> float:
        return self.ended_at - self.at


async def open_loop(
    stage: Stage, arrivals: Iterable[float], ask: Callable[[Gateway], Awaitable[Reply]]
) -> list[Visit]:
    """Ask at each arrival time, whether or not earlier ones have been answered; return when all are over."""
    visits: list[Visit] = []

    async def visit(entry: Visit) -> None:
        try:
            entry.reply = await ask(stage.gateway)
        except HeadgateError as error:
            entry.error = error
            # Kept tracebacks hold every frame alive: of 100,000 refusals they cost most of a run's time.
            error.__traceback__ = None
        entry.ended_at = stage.now

    async with asyncio.TaskGroup() as group:
        for at in arrivals:
            if at > stage.now:
                await stage.world.clock.sleep(at - stage.now)
            entry = Visit(stage.now)
            visits.append(entry)
            group.create_task(visit(entry))
    return visits


async def until_closed(gateway: Gateway, model: str = "m") -> int:
    """Call a model that answers nothing until its upstream is closed; how many calls that takes."""
    [upstream] = gateway.routes.find(model).upstreams
    for count in range(1, MOST_IN_A_ROW + 1):
        with contextlib.suppress(HeadgateError):
            # Too short a deadline to wait for a probe.
            await gateway.complete(model=model, messages=USER, deadline_s=0.2)
        if upstream.closed:
            return count
    raise AssertionError(f"{upstream.name} has failed {MOST_IN_A_ROW} calls in a row and is not closed")


def poisson(world: World, per_s: float, *, start_s: float = 0.0, end_s: float) -> list[float]:
    """Arrival times with exponential gaps."""
    times, at = [], start_s
    while (at := at - math.log(1.0 - world.chance()) / per_s) < end_s:
        times.append(at)
    return times


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan
