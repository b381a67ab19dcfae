"""The event loops that tests run on: virtual time, and the two real ones that users have.

A test that takes the fixture `run` runs on each of them. Where time matters its times are short, and it asserts
outcomes: how long something takes on a real loop depends on what else the machine does.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import uvloop

from headgate.core.ports.clock import Chance, Clock
from headgate.machine.clock import SystemClock
from headgate.planner import virtual

T = TypeVar("T")
PATIENCE_S: Final = 60.0
REAL: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
NAMES: Final = ("virtual", *REAL)


class World(Protocol):
    """Time and chance, as gateways need them: a `virtual.World` or a real one."""

    @property
    def clock(self) -> Clock: ...

    @property
    def chance(self) -> Chance: ...


class Run(Protocol):
    """Runs a test's coroutine on one kind of loop."""

    def __call__(self, main: Callable[[World], Coroutine[Any, Any, T]], *, seed: int = 0) -> T: ...


@dataclass(frozen=True, slots=True)
class RealWorld:
    clock: SystemClock
    chance: Chance


async def until(reached: Callable[[], bool]) -> None:
    """Look again and again, where nothing says when it has happened."""
    while not reached():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.005)


def run_on(name: str) -> Run:
    return virtual.run if name == "virtual" else _Real(REAL[name])


class _Real:
    """A real loop. An exception that only the loop hears of fails the test."""

    def __init__(self, factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._factory = factory

    def __call__(self, main: Callable[[World], Coroutine[Any, Any, T]], *, seed: int = 0) -> T:
        troubles: list[dict[str, Any]] = []

        async def inside() -> T:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
            async with asyncio.timeout(PATIENCE_S):
                return await main(RealWorld(SystemClock(), random.Random(seed).random))

        with asyncio.Runner(loop_factory=self._factory) as runner:
            result = runner.run(inside())
        assert troubles == []
        return result
