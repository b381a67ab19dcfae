"""Direct calls under a key: unknown outcomes resolve themselves, and one key has one answer, whatever is cut off."""

import asyncio
import time
from pathlib import Path
from typing import Final

import pytest
from chaos import audit
from chaos.clients import Wish, call
from chaos.conftest import Theatre
from chaos.nodes import Node
from chaos.world import World
from conftest import Figure
from crash.conftest import site_on
from crash.harness import ROUNDS, SEED, Site
from wire import Moment

LEASE_S: Final = 6.0 if ROUNDS else 2.0
SLOW_LEASE_S: Final = 6.0
"""Longer than the store is slow: the node lives all the while."""
LONG_LEASE_S: Final = 15.0
AWAY_S: Final = 7.0
"""Longer than one write is repeated, and not long enough for the node to be declared dead."""
RESERVE: Final = b"'reserved'"
SENT: Final = b"set state = 'sent'"
FINISH: Final = b"set state = 'done'"
FREE: Final = b"delete from headgate.idempotency_keys"
ATTEMPTS: Final = 4
"""All that a call has, at an upstream that is not closed when it fails: of one that is, calls wait for the end."""
POINTS: Final = (*audit.OF_KEYS, 13)


def both(name: str) -> tuple[Wish, Wish]:
    """The same, whole and streamed."""
    return call(f"{name} whole"), call(f"{name} streamed", stream=True)


class TestOnPostgres:
    """Cuts need a wire, and SQLite has none."""

    @pytest.fixture
    def site(self, request: pytest.FixtureRequest, tmp_path: Path) -> Site:
        return site_on("postgres", request, tmp_path)

    @pytest.mark.timeout(600)
    def test_a_statement_whose_answer_is_lost_blocks_no_key(self, theatre: Theatre, figure: Figure) -> None:
        """Reserve, mark, finish and free, each cut before the server received it and after it has carried it out."""

        async def scene(made: World) -> None:
            await asyncio.gather(
                *(
                    _cut_once(made, f"cut {number} {moment}", statement, moment)
                    for number, statement in enumerate((RESERVE, SENT, FINISH, FREE))
                    for moment in Moment
                )
            )
            await made.settle()

        books = theatre.play(scene, seed=SEED, lease_s=LEASE_S, delay_s=0.1, breaker=False)
        figure("postgres: keys whose statements are cut", audit.figures(books))
        audit.check(books, POINTS, seed=SEED)

    @pytest.mark.timeout(600)
    def test_a_key_whose_store_is_away_at_its_end_is_answered_once(
        self, theatre: Theatre, figure: Figure
    ) -> None:
        """A failure that cannot be freed, an answer that cannot be stored: only the first gateway is cut off."""

        async def scene(made: World) -> None:
            g1, g2 = made.gateways
            answered, failed = both("answered"), both("failed")
            made.provider.failures |= {wish.key: ATTEMPTS for wish in failed}
            asked = [made.ask(wish, g1, g1) for wish in (*answered, *failed)]
            await asyncio.gather(*(made.provider.arrival(wish.key) for wish in (*answered, *failed)))
            # Its own lease runs all the while, so the others must wait for what it has.
            await g1.refuse(AWAY_S)
            asked += [made.ask(wish, g2, g2) for wish in (*answered, *failed)]
            await asyncio.gather(*asked)
            await made.settle()

        books = theatre.play(scene, seed=SEED, lease_s=LONG_LEASE_S, delay_s=0.5, breaker=False)
        figure("postgres: keys whose store is away at their end", audit.figures(books))
        audit.check(books, POINTS, seed=SEED)


@pytest.mark.timeout(600)
def test_a_client_that_hangs_up_blocks_no_key(theatre: Theatre, figure: Figure) -> None:
    """While its reservation is on its way: the store is slow, and the client impatient. No fault is needed."""
    # Of a slow wire the outcome is unknown between the statement's arrival and its answer's: after one trip, or three.
    moments = [0.45, 0.55, 0.65, 0.75, 1.3, 1.5] if theatre.kind == "postgres" else [0.3, 0.4, 0.5, 0.6]

    async def scene(made: World) -> None:
        g1, g2 = made.gateways
        # As many as there are connections: none of those that follow has to be made first.
        await asyncio.gather(*(made.ask(call(f"warm {moment}"), g1) for moment in moments))
        wishes = [call(f"hung up after {moment} s") for moment in moments]
        slow = g1.slow_down(2.5, 0.4) if made.server else made.lock_file(1.2)
        slowness = asyncio.create_task(slow)
        while not made.books.disturbances:  # noqa: ASYNC110 - it begins when another thread has the lock
            await asyncio.sleep(0.01)
        await asyncio.gather(
            *(
                made.clients.ask(wish, g1, leave_after_s=moment)
                for wish, moment in zip(wishes, moments, strict=True)
            )
        )
        await slowness
        # What was under way is written by now, for a client that is gone.
        await asyncio.sleep(1.0)
        await asyncio.gather(*(_answered_soon(made, wish, g2) for wish in wishes))
        await made.settle()

    books = theatre.play(scene, seed=SEED, lease_s=SLOW_LEASE_S, delay_s=0.1)
    figure(f"{theatre.kind}: clients that hang up", audit.figures(books))
    audit.check(books, (8, 9, 13), seed=SEED)


async def _cut_once(made: World, name: str, statement: bytes, moment: Moment) -> None:
    """The first gateway's connection, at this statement of a whole and of a streamed call; then another is asked."""
    g1, g2 = made.gateways
    for wish in both(name):
        if statement is FREE:
            made.provider.failures[wish.key] = ATTEMPTS
        cut = asyncio.create_task(g1.cut_at(statement, moment, also=wish.key.encode(), within_s=20.0))
        await asyncio.sleep(0)
        asked = made.ask(wish, g1, g2)
        assert await cut, f"there was no statement with {statement!r} for {wish.key}"
        await asked


async def _answered_soon(made: World, wish: Wish, gateway: Node) -> None:
    """At another gateway than the first, which is given time for one renewal."""
    made.clients.wishes.append(wish)
    until = time.monotonic() + made.lease_s + 5
    while (answer := await made.clients.ask(wish, gateway)) is None or answer.status != 200:
        if time.monotonic() > until:
            # The audit says which key is stuck, and where.
            return
        await asyncio.sleep(0.2)
