"""What a gate costs: an uncontended hold beside asyncio.Semaphore, and operations with 10,000 waiters.

Run: python bench/gate.py. Exit code 1 when a bound is broken.
"""

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from headgate.calls.gate import Gate
from headgate.core.call import Lane
from headgate.core.gate_rules import GateRules
from headgate.core.ticket import Ticket
from headgate.machine.clock import SystemClock

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


async def bare_futures(count: int) -> tuple[float, float, float]:
    """The floor of the same three operations: tasks that wait for nothing but a future of their own."""
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(count)]

    async def wait(index: int) -> None:
        await futures[index]
        if index + 1 < count and not futures[index + 1].done():
            futures[index + 1].set_result(None)

    tasks = [asyncio.create_task(wait(index)) for index in range(count)]
    start = time.perf_counter()
    await asyncio.sleep(0)
    entered = time.perf_counter()
    half = tasks[count // 2 :]
    for task in half:
        task.cancel()
    await asyncio.gather(*half, return_exceptions=True)
    cancelled = time.perf_counter()
    futures[0].set_result(None)
    await asyncio.gather(*tasks, return_exceptions=True)
    done = time.perf_counter()
    each = count // 2
    return (
        (entered - start) / count * 1e6,
        (cancelled - entered) / each * 1e6,
        (done - cancelled) / each * 1e6,
    )


async def per_operation_us(work: Callable[[int], Awaitable[None]]) -> float:
    start = time.perf_counter()
    await work(HOLDS)
    return (time.perf_counter() - start) / HOLDS * 1e6


async def measure() -> bool:
    holds: list[tuple[float, float]] = []
    bare: list[tuple[float, float, float]] = []
    gated: list[tuple[float, float, float]] = []
    for _ in range(ROUNDS):
        holds.append((await per_operation_us(semaphore_holds), await per_operation_us(gate_holds)))
        bare.append(await bare_futures(WAITERS))
        gated.append(await contended(WAITERS))
    floor, hold = (statistics.median(figures) for figures in zip(*holds, strict=True))
    print(f"{'':38}{'gate':>9}  {'floor':>9}")
    print(
        f"{'uncontended hold (floor: Semaphore)':38}{hold:6.2f} µs  {floor:6.2f} µs  ≤ 5 µs and ≤ 10 × floor: {hold / floor:.1f} ×"
    )
    worst = 0.0
    names = ("enter", "cancel", "hand over")
    for name, floors, figures in zip(names, zip(*bare, strict=True), zip(*gated, strict=True), strict=True):
        figure = statistics.median(figures)
        worst = max(worst, figure)
        label = f"{name}, {WAITERS:,} waiters (floor: futures)"
        print(f"{label:38}{figure:6.2f} µs  {statistics.median(floors):6.2f} µs  ≤ 20 µs")
    return hold <= MOST_HOLD_US and hold <= MOST_TIMES_SEMAPHORE * floor and worst <= MOST_CONTENDED_US


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(measure()) else 1)
