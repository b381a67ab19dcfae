"""What a gate costs: an uncontended hold beside asyncio.Semaphore, and operations with 10,000 waiters.

Run: python bench/gate.py. Exit code 1 when a bound is broken.
"""

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from headgate.core.gate_rules import GateRules
from headgate.core.messages import Lane
from headgate.core.ticket import Ticket
from headgate.dispatch.clock import SystemClock
from headgate.dispatch.gate import Gate

ROUNDS = 7
HOLDS = 20_000
WAITERS = 10_000
MOST_HOLD_US = 5.0
MOST_TIMES_SEMAPHORE = 10.0
MOST_CONTENDED_US = 20.0


async def semaphore_holds(count: int) -> None:
    semaphore = asyncio.Semaphore(8)
    for _ in range(count):
        async with semaphore:
            pass


async def gate_holds(count: int) -> None:
    clock = SystemClock()
    gate = Gate("bench", GateRules(slots=8), clock=clock, chance=random.random)
    for _ in range(count):
        ticket = Ticket(since=clock.now())
        await gate.enter(ticket)
        gate.leave(ticket)


async def contended(count: int) -> tuple[float, float, float]:
    """Microseconds per operation with `count` waiters: entering, handing over, cancelling."""
    clock = SystemClock()
    gate = Gate("bench", GateRules(slots=1, depth=0), clock=clock, chance=random.random)
    first = Ticket(since=clock.now())
    await gate.enter(first)

    async def wait(index: int) -> None:
        lane = Lane.BATCH if index % 3 == 0 else Lane.INTERACTIVE
        ticket = Ticket(since=clock.now(), lane=lane, tenant=f"tenant {index % 50}")
        await gate.enter(ticket)
        gate.leave(ticket)

    tasks = [asyncio.create_task(wait(index)) for index in range(count)]
    start = time.perf_counter()
    await asyncio.sleep(0)
    entered = time.perf_counter()
    half = random.Random(1).sample(tasks, count // 2)
    for task in half:
        task.cancel()
    await asyncio.gather(*half, return_exceptions=True)
    cancelled = time.perf_counter()
    gate.leave(first)
    await asyncio.gather(*tasks, return_exceptions=True)
    done = time.perf_counter()
    rest = count - len(half)
    return (
        (entered - start) / count * 1e6,
        (cancelled - entered) / len(half) * 1e6,
        (done - cancelled) / rest * 1e6,
    )


async def per_operation_us(work: Callable[[int], Awaitable[None]]) -> float:
    start = time.perf_counter()
    await work(HOLDS)
    return (time.perf_counter() - start) / HOLDS * 1e6


async def measure() -> bool:
    semaphore, gate, entering, cancelling, granting = [], [], [], [], []
    for _ in range(ROUNDS):
        semaphore.append(await per_operation_us(semaphore_holds))
        gate.append(await per_operation_us(gate_holds))
        enter, cancel, grant = await contended(WAITERS)
        entering.append(enter)
        cancelling.append(cancel)
        granting.append(grant)
    floor, hold = statistics.median(semaphore), statistics.median(gate)
    print(f"asyncio.Semaphore, uncontended hold   {floor:6.2f} µs")
    print(
        f"gate, uncontended hold                {hold:6.2f} µs  (≤ {MOST_HOLD_US:g}; {hold / floor:.1f}× semaphore, ≤ 10)"
    )
    worst = 0.0
    for name, figures in (("enter", entering), ("cancel", cancelling), ("hand over", granting)):
        figure = statistics.median(figures)
        worst = max(worst, figure)
        print(
            f"gate, {name} with {WAITERS:,} waiters".ljust(38)
            + f"{figure:6.2f} µs  (≤ {MOST_CONTENDED_US:g})"
        )
    return hold <= MOST_HOLD_US and hold <= MOST_TIMES_SEMAPHORE * floor and worst <= MOST_CONTENDED_US


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(measure()) else 1)
