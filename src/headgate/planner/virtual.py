"""Virtual time: an asyncio loop that jumps to its next timer instead of waiting for it.

`run(main, seed=7)` gives `main` a `World` of time and chance. The same seed tells the same story, as long as
the story asks no thread, network or set of tasks for its order (`asyncio.wait` and an aborting `TaskGroup`
walk through sets). Knows asyncio's timer heap and selector; knows nothing of gates, load or providers.
"""

import asyncio
import heapq
import itertools
import math
import random
import selectors
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar, TypeVarTuple

from headgate.core.ports.clock import Chance

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_TASKS_NAMED: Final = 10


class VirtualDeadlock(RuntimeError):
    """Every task waits for another one. On a real clock this would hang."""


class _Timer(asyncio.TimerHandle):
    """A timer that keeps its turn: asyncio's heap alone would shuffle timers of equal times."""

    __slots__ = ("turn",)
    turn: int
    # asyncio's own, named here for the type checker; so are those of the loop below.
    _when: float
    _scheduled: bool

    def __lt__(self, other: "_Timer") -> bool:  # type: ignore[override]  # the loop's heap holds no other kind
        if self._when == other._when:
            return self.turn < other.turn
        return self._when < other._when


class _JumpingSelector(selectors.DefaultSelector):
    """Where the loop would sleep, it jumps; where it may not jump, it waits for real."""

    def __init__(self, jump: Callable[[], bool]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0 or self._jump():
            return ready
        return super().select(None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still while anything runs and jumps when all wait. Time begins at 0.

    Threads of `run_in_executor` (and `asyncio.to_thread`) hold time by themselves; any other thread, process
    or network must be waited for inside `outside()`.
    """

    _scheduled: list[_Timer]
    _clock_resolution: float
    _debug: bool
    _check_closed: Callable[[], None]
    _check_thread: Callable[[], None]

    def __init__(self) -> None:
        self._now = 0.0
        self._in_flight = 0
        self._turns = itertools.count()
        super().__init__(_JumpingSelector(self._jump))
        self._clock_resolution = math.ulp(0.0)

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_closed()
        if self._debug:
            self._check_thread()
        if math.isnan(when):
            raise ValueError("a timer needs a time, not NaN")
        timer = _Timer(when, callback, args, self, context)
        timer.turn = next(self._turns)
        timer._scheduled = True  # noqa: SLF001 - asyncio's mark: it sweeps out cancelled timers by it
        heapq.heappush(self._scheduled, timer)
        return timer

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._in_flight += 1
        # A cancelled future lets go of time at once: its thread may run on, but nobody hears of it.
        future.add_done_callback(self._landed)
        return future

    async def shutdown_default_executor(self, _timeout: float | None = None) -> None:
        """Joining threads is work outside too; while time stands still, a timeout has no meaning."""
        with self.outside():
            await super().shutdown_default_executor()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Hold time still. Do not wait for a timer in here: it will not come."""
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1

    def _landed(self, _future: "asyncio.Future[Any]") -> None:
        self._in_flight -= 1

    def _jump(self) -> bool:
        """Nothing is ready: go to the next timer, unless the outside may still bring something."""
        if self._in_flight:
            return False
        when = self._scheduled[0].when() if self._scheduled else math.inf
        if when == math.inf:
            raise VirtualDeadlock(self._stuck())
        # To the timer's own time, not by a difference: differences round, and asyncio caps them at a day.
        # With the smallest step as resolution, asyncio runs what is due at this very time and nothing later.
        self._now = when
        self._clock_resolution = math.ulp(when)
        return True

    def _stuck(self) -> str:
        waiting = sorted(_describe(task) for task in asyncio.all_tasks(self))
        more = len(waiting) - _MOST_TASKS_NAMED
        names = ", ".join(waiting[:_MOST_TASKS_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"at t={self._now}: every task waits and nothing can wake them: {names or 'no task is left'}"


def _describe(task: "asyncio.Task[Any]") -> str:
    coroutine = task.get_coro()
    return f"{task.get_name()[:60]} ({getattr(coroutine, '__qualname__', type(coroutine).__name__)})"


class VirtualClock:
    """The clock of a `VirtualLoop`: seconds from 0.0, dates from `epoch`."""

    def __init__(self, loop: VirtualLoop, *, epoch: datetime = EPOCH) -> None:
        self._loop = loop
        self._epoch = epoch

    def now(self) -> float:
        return self._loop.time()

    def since_boot(self) -> float:
        return self._loop.time()

    def utc(self) -> datetime:
        return self._epoch + timedelta(seconds=self._loop.time())

    def follow(self, epoch_s: float) -> None:
        """Virtual time has nothing to do with another clock's."""

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        return asyncio.sleep(seconds)

    def outside(self) -> AbstractContextManager[None]:
        return self._loop.outside()


@dataclass(frozen=True, slots=True)
class World:
    """Time and chance of one run. `chance` draws from the run's seed."""

    clock: VirtualClock
    chance: Chance
    loop: VirtualLoop


def run(main: Callable[[World], Coroutine[Any, Any, T]], *, seed: int = 0, epoch: datetime = EPOCH) -> T:
    """Run `main` in a world of its own. What it leaves running is cancelled; nothing stays open."""
    if _loop_is_running():
        raise RuntimeError("virtual.run cannot be called from a running event loop")
    loop = VirtualLoop()
    world = World(VirtualClock(loop, epoch=epoch), random.Random(seed).random, loop)

    async def inside() -> T:
        return await main(world)

    # With a factory of our own, Runner leaves the thread's current event loop as it is.
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(inside())


def _loop_is_running() -> bool:
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False
