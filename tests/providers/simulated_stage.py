"""The stage for the simulated provider's tests: a clock that jumps, requests, and ways to look at failures."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from providers.asking import a_call, chunks_of

from headgate.core.answer import Answer, Chunk
from headgate.core.call import Call
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure
from headgate.core.ports.provider import Provider
from headgate.providers.simulated import SimulatedOptions, SimulatedProvider, options_for


class FakeClock:
    """Sleeping moves the time on and lets others run; `sleeps` holds what was slept."""

    def __init__(self) -> None:
        self.time = 100.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    def since_boot(self) -> float:
        return self.time

    def utc(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.time)

    def follow(self, epoch_s: float) -> None:
        self.time = epoch_s

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)

    @contextmanager
    def outside(self) -> Iterator[None]:
        yield


def provider_with(
    *,
    clock: FakeClock | None = None,
    chance_seed: int = 7,
    connect_timeout_s: float | None = None,
    **options: Any,
) -> SimulatedProvider:
    return SimulatedProvider(
        SimulatedOptions(**options),
        model="simulated",
        clock=clock or FakeClock(),
        chance=random.Random(chance_seed).random,
        connect_timeout_s=connect_timeout_s,
    )


def provider_named(name: str, *, clock: FakeClock | None = None, **overrides: Any) -> SimulatedProvider:
    return SimulatedProvider(
        options_for(name, overrides),
        model=name,
        clock=clock or FakeClock(),
        chance=random.Random(7).random,
        connect_timeout_s=5.0,
    )


def ask(text: str = "hello", *, id: str = "r1") -> Call:  # noqa: A002 - it is the call's field
    return msgspec.structs.replace(a_call(text), id=id)


def ask_stream(text: str = "hello", *, id: str = "r1") -> Call:  # noqa: A002 - it is the call's field
    return msgspec.structs.replace(a_call(text, stream=True), id=id)


def send(provider: Provider, call: Call | None = None) -> Answer:
    return asyncio.run(provider.send(call or ask()))


def failure_from(provider: Provider, call: Call | None = None) -> Failure:
    with pytest.raises(ProviderFailure) as caught:
        send(provider, call)
    return caught.value.failure


def story(provider: Provider, count: int) -> list[str]:
    """How `count` calls went, one word each."""
    return [_word(provider, ask(f"question {number}", id=f"r{number}")) for number in range(count)]


def _word(provider: Provider, call: Call) -> str:
    try:
        answer = send(provider, call)
    except ProviderFailure as error:
        return error.failure.kind
    except RuntimeError:
        return "broken"
    return "blank" if answer.blank else "ok"


async def read(provider: Provider, call: Call | None = None) -> Sequence[Chunk]:
    return [chunk async for chunk in chunks_of(provider, call or ask_stream())]


async def let_others_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Let a call get going, then cancel it and see it end."""
    await let_others_run()
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
