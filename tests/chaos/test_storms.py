"""Everything at once, from a seed: kills, freezes, restarts, cuts at statements, outages, clocks. The whole audit afterwards."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from chaos import audit
from chaos.conftest import Theatre
from chaos.nodes import Node
from chaos.world import World
from conftest import Figure
from crash.harness import ROUNDS, SEED
from wire import Moment

STORMS = 4 if ROUNDS else 1
STORM_S = 45.0 if ROUNDS else 5.0
LEASE_S = 3.0
CLIENTS = 8 if ROUNDS else 5
LIST_SIZE = 40 if ROUNDS else 10
STATEMENTS = (
    b"insert into headgate.idempotency_keys",
    b"set state = 'sent'",
    b"set state = 'done'",
    b"delete from headgate.idempotency_keys",
    b"update headgate.jobs",
    b"delete from headgate.jobs",
    b"update headgate.nodes",
    b"COMMIT",
)
Act = Callable[[Node], Awaitable[None]]


class Storm:
    """Disturbs one node after the other, and now and then two at once, in an order that the seed gives."""

    def __init__(self, made: World, chance: random.Random) -> None:
        self._world = made
        self._chance = chance

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        # Two lines of trouble: what one does to a node is over before the same line does something else.
        halves = [[*self._world.gateways[:1], *self._world.workers[:1]], []]
        halves[1] = [node for node in self._world.nodes if node not in halves[0]]
        # At least one worker dies with work in hand.
        victim = self._world.workers[-1]
        await self._world.provider.working_for(victim.name)
        await self._kill(victim)
        await asyncio.gather(*(self._line(half, until) for half in halves))

    async def _line(self, nodes: list[Node], until: float) -> None:
        loop = asyncio.get_running_loop()
        acts = self._acts()
        while loop.time() < until:
            await asyncio.sleep(self._chance.uniform(0.1, 0.6))
            act = self._chance.choices([one for one, _ in acts], [weight for _, weight in acts])[0]
            await act(self._chance.choice(nodes))

    def _acts(self) -> list[tuple[Act, int]]:
        """With how often they are chosen."""
        everywhere: list[tuple[Act, int]] = [
            (self._kill, 3),
            (self._freeze, 3),
            (Node.restart, 2),
            (self._step, 2),
        ]
        if self._world.server is None:
            return [*everywhere, (self._lock, 2)]
        wired: list[tuple[Act, int]] = [
            (self._cut_at_statement, 8),
            (self._silence, 3),
            (self._refuse, 3),
            (self._slow_down, 1),
            (self._outage, 1),
        ]
        return [*everywhere, *wired]

    async def _kill(self, node: Node) -> None:
        await node.kill(self._chance.choice([0.0, 0.0, LEASE_S]))

    async def _freeze(self, node: Node) -> None:
        """Shorter than a lease, or longer than two."""
        await node.freeze(self._chance.choice([0.3, LEASE_S * 0.3, LEASE_S * 2.3]))

    async def _step(self, node: Node) -> None:
        node.set_clock(self._chance.choice([-600.0, 0.0, 600.0, 3600.0]))

    async def _lock(self, _node: Node) -> None:
        await self._world.lock_file(self._chance.choice([0.5, LEASE_S * 1.2]))

    async def _cut_at_statement(self, node: Node) -> None:
        """The statement may not be run in the next moments; then nothing is cut."""
        statement, moment = self._chance.choice(STATEMENTS), self._chance.choice(list(Moment))
        await node.cut_at(statement, moment, within_s=0.7)

    async def _silence(self, node: Node) -> None:
        up, down = self._chance.choice([(True, True), (True, False), (False, True)])
        await node.silence(self._chance.choice([0.5, LEASE_S * 2.3]), up=up, down=down)

    async def _refuse(self, node: Node) -> None:
        await node.refuse(self._chance.choice([0.3, LEASE_S * 2.3]))

    async def _slow_down(self, node: Node) -> None:
        await node.slow_down(1.0, 0.2)

    async def _outage(self, _node: Node) -> None:
        if self._chance.random() < 0.5:
            await self._world.freeze_postgres(self._chance.choice([0.5, LEASE_S * 1.2]))
        else:
            await self._world.stop_postgres(self._chance.choice([0.1, LEASE_S * 1.2]))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(STORMS))
def test_a_storm_loses_doubles_and_blocks_nothing(theatre: Theatre, figure: Figure, number: int) -> None:
    """Three gateways and two workers (two and two on SQLite), and clients who never stop asking."""
    seed = SEED + number

    async def scene(made: World) -> None:
        made.crowd(CLIENTS, LIST_SIZE)
        await asyncio.sleep(0.5)
        await Storm(made, random.Random(seed)).run(STORM_S)
        await made.settle()

    gateways = 3 if theatre.kind == "postgres" else 2
    books = theatre.play(scene, seed=seed, lease_s=LEASE_S, gateways=gateways, failing=0.03)
    figure(f"{theatre.kind}: a storm of {STORM_S:g} s, seed {seed}", audit.figures(books))
    audit.check(books, audit.POINTS, seed=seed)


@pytest.mark.timeout(600)
def test_restarts_in_order_repeat_no_call(theatre: Theatre, figure: Figure) -> None:
    """A deploy, one node after the other: every prompt is called once, and no crash is counted."""

    async def scene(made: World) -> None:
        made.crowd(CLIENTS, LIST_SIZE)
        for node in made.nodes * (5 if ROUNDS else 1):
            await asyncio.sleep(0.2)
            await node.restart()
        await made.settle()

    books = theatre.play(scene, seed=SEED, lease_s=LEASE_S)
    figure(f"{theatre.kind}: restarts in order", audit.figures(books))
    audit.check(books, [*audit.OF_JOBS, *audit.OF_KEYS, *audit.OF_PROCESSES], seed=SEED)
    assert sum(job.crashes for job in books.jobs) == 0
