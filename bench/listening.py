"""What it costs to be heard: an event with nobody and with somebody at `/events`, the ids in log lines, a traced request.

Run: python bench/listening.py. Exit code 1 when a bound is broken.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from figures import Figure, heading
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate import wiring
from headgate.core.answer import Usage
from headgate.core.call import Lane
from headgate.core.events import AttemptEnded, Responded
from headgate.gateway import Gateway
from headgate.machine.clock import SystemClock
from headgate.machine.context import REQUEST_IDS
from headgate.observe.fanout import EventFanout
from headgate.observe.ring import EventRing
from headgate.observe.tracing import Tracing
from headgate.server.access import OpenAccess
from headgate.server.events import Asked, EventRoutes, wanted_by

ROUNDS = 5
EVENTS = 4_000
CALLS = 2_000
MOST_UNHEARD_US = 2.0
MOST_IDS_SHARE = 0.01
USAGE = Usage(12, 4)
TOLD = (
    AttemptEnded(request_ids=("r-1",), model="m", upstream="u", attempt=1, duration_ms=12.5, usage=USAGE),
    Responded(
        request_id="r-1",
        agent_id=None,
        model="m",
        upstream="u",
        lane=Lane.INTERACTIVE,
        attempts=1,
        latency_ms=13.0,
        queue_ms=0.0,
        usage=USAGE,
    ),
)


async def heard(readers: int) -> float:
    """Microseconds of CPU per event, at 4,000 a second, all that follows from it included; -1 readers: without the ring."""
    clock, fanout = SystemClock(), EventFanout()
    ring = EventRing(clock.utc)
    if readers >= 0:
        fanout.listen(ring)
    routes = EventRoutes(ring, OpenAccess(), asyncio.Event(), clock=clock, run="bench")
    wanted = wanted_by(OpenAccess().admit((), None), Asked())  # type: ignore[arg-type]  # it asks nobody

    async def read() -> None:
        async for _ in routes.pieces(0, wanted, welcome=lambda: True):
            pass

    reading = [asyncio.create_task(read()) for _ in range(readers)]
    start = time.process_time()
    for _ in range(EVENTS // 80):
        for _ in range(40):
            for event in TOLD:
                fanout(event)
        await asyncio.sleep(0.02)
    spent = time.process_time() - start
    ring.close()
    await asyncio.gather(*reading)
    return spent / EVENTS * 1e6


async def calls(gateway: Gateway) -> float:
    """Microseconds of CPU per direct call."""
    messages = [{"role": "user", "content": "hello"}]
    start = time.process_time()
    for _ in range(CALLS):
        await gateway.complete(model="simulated/instant", messages=messages)
    return (time.process_time() - start) / CALLS * 1e6


def ids() -> float:
    """Microseconds for what a request over HTTP does for its log lines: set at the edge, set and taken back inside."""
    some = ("req_0123456789abcdef",)
    start = time.process_time()
    for _ in range(100_000):
        REQUEST_IDS.set(some)
        before = REQUEST_IDS.set(some)
        REQUEST_IDS.reset(before)
    return (time.process_time() - start) / 100_000 * 1e6


async def median(measure: Callable[[], Awaitable[float]]) -> float:
    return statistics.median([await measure() for _ in range(ROUNDS)])


async def main() -> int:
    print(heading())
    nobody = await median(lambda: heard(0))
    base = await median(lambda: heard(-1))
    one = await median(lambda: heard(1))
    clock = SystemClock()
    plain = wiring.build(wiring.read_settings({}, env={}))
    tracing = Tracing(BatchSpanProcessor(InMemorySpanExporter()), utc=clock.utc)
    traced = wiring.build(wiring.read_settings({}, env={}), tracing=tracing)
    usual, watched = await median(lambda: calls(plain)), await median(lambda: calls(traced))
    own = statistics.median(ids() for _ in range(ROUNDS))
    figures = [
        Figure(
            what="an event, nobody at /events",
            asked=f"≤ {MOST_UNHEARD_US:g} µs",
            measured=f"{nobody - base:.2f} µs",
            beside=f"without the ring {base:.2f} µs",
            score=MOST_UNHEARD_US / max(nobody - base, 0.001),
        ),
        Figure(
            what="an event, one reader at /events",
            measured=f"{one - base:.2f} µs",
            beside=f"nobody {nobody - base:.2f} µs",
        ),
        Figure(
            what="ids for log lines, per request",
            asked=f"≤ {MOST_IDS_SHARE:.0%}",
            measured=f"{own:.2f} µs",
            beside=f"a direct call {usual:.1f} µs",
            ratio=f"{own / usual:.2%}",
            score=MOST_IDS_SHARE * usual / own,
        ),
        Figure(
            what="a traced call",
            measured=f"{watched:.1f} µs",
            beside=f"untraced {usual:.1f} µs",
            ratio=f"{watched / usual:.2f} ×",
        ),
    ]
    for figure in figures:
        print(figure)
    await tracing.aclose()
    return int(any(figure.verdict == "BROKEN" for figure in figures))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
