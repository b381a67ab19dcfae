"""A model whose slow calls get a second attempt, and what became of its calls."""

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from loops import World
from stage import USER, Stage, set_stage

from headgate.core.answer import Reply
from headgate.core.events import AttemptEnded, Event
from headgate.core.hedging import HedgeRules, Hedging
from headgate.gateway import Gateway

FIRST: Final = "simulated/instant"
SECOND: Final = "simulated/slow"
"""The two upstreams by name; how fast they are is up to the test."""
E = TypeVar("E", bound=Event)


def hedge(gateway: Gateway, after: str | float, share: float = 1.0, model: str = "m") -> Hedging:
    """Give this model's slow calls a second attempt from now on."""
    routes = gateway.routes
    hedging = Hedging(HedgeRules(after=after, share=share))
    routes._routes[model] = dataclasses.replace(routes.find(model), hedging=hedging)
    return hedging


def hedged_stage(
    world: World,
    first: Mapping[str, Any],
    second: Mapping[str, Any] | None = None,
    *,
    after: str | float = 2.0,
    share: float = 1.0,
    **model: Any,
) -> Stage:
    """One upstream, or two. Each answers after a second and refuses at once, unless said otherwise."""
    usual = {"latency_s": 1.0, "failure_latency_s": 0.0}
    upstreams = [{**usual, "model": "instant", **first}]
    if second is not None:
        upstreams.append({**usual, "model": "slow", **second})
    stage = set_stage(world, *upstreams, keep_events=True, **model)
    hedge(stage.gateway, after, share)
    return stage


def told(stage: Stage, kind: type[E]) -> list[E]:
    return [event for event in stage.events if isinstance(event, kind)]


def ends(stage: Stage) -> list[tuple[str, str | None]]:
    """Each attempt's upstream and the kind of its failure, in the order in which they ended."""
    return [
        (event.upstream, None if event.failure is None else event.failure.kind.value)
        for event in told(stage, AttemptEnded)
    ]


def calls(stage: Stage) -> list[int]:
    return [provider.calls for provider in stage.providers]


def idle(stage: Stage) -> bool:
    """No slot is held, nobody waits, nothing is in flight: neither for us nor for the providers."""
    upstreams = stage.gateway.routes.find("m").upstreams
    admissions = [upstream.gate.admission for upstream in upstreams]
    counted = [
        number
        for admission in admissions
        for number in (admission.held, admission.in_transit, admission.waiting, admission.intake.in_flight)
    ]
    return not any(counted) and not any(provider.in_flight for provider in stage.providers)


async def ask(stage: Stage, **options: Any) -> Reply:
    return await stage.gateway.complete(model="m", messages=USER, **options)


def asking(stage: Stage, **options: Any) -> asyncio.Task[Reply]:
    return asyncio.create_task(ask(stage, **options))


async def read(stage: Stage, **options: Any) -> str:
    async with stage.gateway.stream(model="m", messages=USER, **options) as stream:
        return "".join([chunk.text async for chunk in stream])
