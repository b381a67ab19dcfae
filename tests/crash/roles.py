"""What a child process of the crash tests can be: a producer of jobs, a worker, one of many with the same key, …"""

import asyncio
import itertools
import os
import random
import signal
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Final

from crash import ledger
from crash.gauntlet import gauntlet
from crash.ledger import Ledger
from crash.posting import gateway, poster
from crash.tasks import Worker

import headgate
from headgate.cli import main
from headgate.core.ports.claims import Want
from headgate.gateway import Gateway

LIST_SIZE: Final = 4
KINDS: Final = ("plain", "keyed", "dedup", "record", "list", "keyed list")
INPUTS: Final = "inputs"
"""The collection of the records that come with a submission."""


async def worker(*, settings: Mapping[str, Any], ledgers: str, pace: float, drain_s: float = 0.2) -> None:
    """Runs jobs until it is told to stop, then gives back what it does not finish at once."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    tasks = Worker(ledgers, pace).tasks()
    async with headgate.open(settings, env={}, work=True, tasks=tasks) as gateway:
        Ledger(ledgers, "up").add()
        await stop.wait()
        await gateway.aclose(drain_s)


async def producer(*, settings: Mapping[str, Any], ledgers: str, pause_s: float) -> None:
    """Submits for ever. Says what it is about to ask (`asked`), and what it was promised (`promised`) only then."""
    promised = Ledger(ledgers, "promised")
    async with headgate.open(settings, env={}, tasks=Worker(ledgers).tasks()) as gateway:
        for order in _orders(ledgers):
            try:
                handles = await _submit(gateway, order["name"], order["kind"])
            except headgate.StoreUnavailable:
                # Who has no key cannot know; who has one asks again.
                await asyncio.sleep(0.1)
                continue
            promised.add(**order, ids=[handle.id for handle in handles])
            await asyncio.sleep(pause_s)


def _orders(ledgers: str) -> Iterator[dict[str, str]]:
    """First what predecessors asked for with a key and heard nothing of, then new ones, now and then one again."""
    heard = {line["name"] for line in ledger.read(ledgers, "promised")}
    for line in ledger.read(ledgers, "asked"):
        if line["name"] not in heard and "keyed" in line["kind"]:
            yield {"name": line["name"], "kind": line["kind"]}
    asked = Ledger(ledgers, "asked")
    start = time.time_ns()
    for number in itertools.count():
        order = {"name": f"{start}-{number}", "kind": KINDS[number % len(KINDS)]}
        asked.add(**order)
        yield order
        if "keyed" in order["kind"]:
            yield order


async def _submit(gateway: Gateway, name: str, kind: str) -> list[headgate.JobHandle]:
    """The same order is the same submission, whoever sends it."""
    chance = random.Random(zlib.crc32(name.encode()))
    work = {"run_s": round(chance.uniform(0.0, 0.15), 3), "thinks": chance.random() < 0.2}
    told = {"name": name}
    jobs = gateway.jobs
    match kind:
        case "keyed":
            return [await jobs.submit("effect", work, metadata=told, idempotency_key=name)]
        case "dedup":
            return [await jobs.submit("effect", work, metadata=told, dedup_key=f"twin {chance.randrange(3)}")]
        case "record":
            record = headgate.record(INPUTS, name, work)
            return [await jobs.submit("effect", work, metadata=told, records=[record])]
        case "list" | "keyed list":
            listed = [{"task": "effect", "input": work, "metadata": told}] * LIST_SIZE
            key = name if kind == "keyed list" else None
            return list(await jobs.submit_many(listed, idempotency_key=key))
        case _:
            return [await jobs.submit("effect", work, metadata=told)]


async def holder(*, settings: Mapping[str, Any], ledgers: str, lone: bool) -> None:
    """Has claimed all there is, and falls silent on PostgreSQL amid what settles one of them: a transaction or a statement."""
    async with headgate.open(settings, env={}, tasks=Worker(ledgers).tasks()) as gateway:
        durable = gateway._durable
        await durable.join()
        wants = [Want("", 1000)]
        claims = await durable.store.claim(wants, node=durable.node.id, suspects=0, now=time.time())

        async def settle(connection: Any) -> None:
            await connection.execute("delete from headgate.jobs where id = $1", claims[0].id)
            Ledger(ledgers, "silent").add(claims=len(claims))
            await asyncio.sleep(3600)

        store: Any = durable.store
        database = store._database
        await (database._run(database._held(settle)) if lone else database.transact("settle", settle))


async def crowd(
    *, settings: Mapping[str, Any], ledgers: str, first_at: float, every_s: float, rounds: int, size: int
) -> None:
    """So many identical submissions at once, with one key per round; other processes do the same in step with us."""
    answers = Ledger(ledgers, "answers")
    async with headgate.open(settings, env={}, tasks=Worker(ledgers).tasks()) as gateway:
        await gateway.jobs.count()
        for number in range(rounds):
            await asyncio.sleep(first_at + number * every_s - time.monotonic())
            one = [
                gateway.jobs.submit("effect", {"run_s": 0.5}, idempotency_key=f"round {number}")
                for _ in range(size)
            ]
            handles = await asyncio.gather(*one)
            created = sum(handle.created for handle in handles)
            answers.add(round=number, ids=[handle.id for handle in handles], created=created)


def node(*, words: list[str], folder: str, clocks: str, ledgers: str) -> None:
    """`headgate …` as at a command line, in this folder, on a machine whose clocks can be set."""
    from crash.clocks import follow  # noqa: PLC0415 - it changes the clocks of the process that imports it

    os.chdir(folder)
    follow(clocks)
    main(words)


ROLES: Final[Mapping[str, Callable[..., Coroutine[Any, Any, None] | None]]] = {
    "node": node,
    "worker": worker,
    "producer": producer,
    "crowd": crowd,
    "holder": holder,
    "gauntlet": gauntlet,
    "gateway": gateway,
    "poster": poster,
}
