"""Where only the store or the clocks were disturbed, no process is dead: no crash is counted and no call is made twice."""

import asyncio
import signal
from typing import Final

import pytest
from chaos import audit
from chaos.books import Asked
from chaos.clients import call
from chaos.conftest import Theatre
from chaos.world import World
from conftest import Figure
from crash.harness import ROUNDS, SEED

LEASE_S: Final = 6.0 if ROUNDS else 2.0
JOBS: Final = 40 if ROUNDS else 20
HOUR_S: Final = 3600.0
POINTS: Final = (*audit.OF_JOBS, *audit.OF_PROCESSES)


@pytest.mark.timeout(600)
def test_an_outage_of_the_store_is_no_crash(theatre: Theatre, figure: Figure) -> None:
    """Shorter than a lease, and longer, while the calls run. If outages counted as crashes, the third would make poison."""
    outages = [(0.8 * LEASE_S, signal.SIGINT), (1.5 * LEASE_S, signal.SIGKILL)]
    outages += [(1.5 * LEASE_S, signal.SIGINT)] * bool(ROUNDS)

    async def scene(made: World) -> None:
        g1, g2 = made.gateways
        made.provider.delays = {"open": 0.1}
        await made.submit("outage", JOBS)
        for key in ("whole", "stream"):
            made.ask(call(key, stream=key == "stream"), g1, g2)
            await made.provider.arrival(key)
        for seconds, how in outages:
            outage = asyncio.create_task(made.outage(seconds, how))
            await asyncio.sleep(0.4 * LEASE_S)
            # A call without a key needs no store.
            await asyncio.gather(
                *(
                    made.clients.call_openly(f"open {gateway.name} {how}", gateway)
                    for gateway in made.gateways
                )
            )
            await outage
            await asyncio.sleep(0.6 * LEASE_S)
        await made.settle()

    books = theatre.play(scene, seed=SEED, lease_s=LEASE_S, delay_s=2.2 * LEASE_S * len(outages))
    figure(f"{theatre.kind}: {len(outages)} outages", audit.figures(books))
    audit.check(books, (*POINTS, *audit.OF_KEYS), seed=SEED)
    assert {one.status for one in books.answers if one.asked is Asked.OPEN_CALL} == {200}


@pytest.mark.timeout(600)
def test_a_clock_that_is_set_moves_no_lease(theatre: Theatre, figure: Figure) -> None:
    """Back and ahead, on the node that works and on those that judge it. Then the whole machine sleeps for an hour."""

    async def scene(made: World) -> None:
        g1, g2 = made.gateways
        await made.submit("clock", JOBS)
        at_work = [made.ask(call(key, stream=key == "stream"), g1, g1) for key in ("whole", "stream")]
        await asyncio.gather(*(made.provider.arrival(key) for key in ("whole", "stream")))
        for node, ahead_s in (
            (g1, -600.0),
            (g2, 600.0),
            (made.workers[0], -600.0),
            (made.workers[1], HOUR_S),
        ):
            node.set_clock(ahead_s)
            await asyncio.sleep(0.5 * LEASE_S)
            # A client that asks elsewhere waits for the one call.
            made.ask(call("whole"), g2, g2)
        for hours in range(2, 5 if ROUNDS else 3):
            made.suspend(hours * HOUR_S)
            await asyncio.sleep(0.8 * LEASE_S)
        await asyncio.gather(*at_work)
        await made.settle()

    books = theatre.play(scene, seed=SEED, lease_s=LEASE_S, delay_s=4.0 * LEASE_S)
    figure(f"{theatre.kind}: clocks are set", audit.figures(books))
    audit.check(books, (*POINTS, *audit.OF_KEYS), seed=SEED)


@pytest.mark.timeout(600)
def test_a_dead_node_is_noticed_whatever_its_clock_said(theatre: Theatre, figure: Figure) -> None:
    """An hour ahead, one renewal, then `kill -9`: its jobs and its key are others' within two leases and 5 s."""

    async def scene(made: World) -> None:
        g1, g2 = made.gateways
        for node in (g1, *made.workers):
            node.set_clock(HOUR_S)
        await asyncio.sleep(0.5 * LEASE_S)
        await made.submit("orphans", JOBS)
        asked = made.ask(call("orphan"), g1, g2)
        await made.provider.arrival("orphan")
        at_work = {one.by for one in made.provider.calls if one.ended is None}
        victim = next(node for node in made.workers if node.name in at_work)
        deaths = [asyncio.create_task(node.kill(3 * LEASE_S)) for node in (g1, victim)]
        await asyncio.gather(asked, *deaths)
        await made.settle()

    books = theatre.play(scene, seed=SEED, lease_s=LEASE_S, delay_s=1.0 * LEASE_S)
    figure(f"{theatre.kind}: killed with a clock an hour ahead", audit.figures(books))
    audit.check(books, (*POINTS, 8, 9, 12), seed=SEED)
