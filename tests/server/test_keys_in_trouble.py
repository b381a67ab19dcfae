"""Idempotency keys at two gateways on one store that fails one of them: a key never stays taken, and has one answer."""

import asyncio
import contextlib
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import apsw
import asyncpg  # type: ignore[import-untyped]
import pytest
from providers.stubs.openai import DONE
from server.http.front_stage import Answer, Play
from server.numbered import NumberedStub
from server.stage import House, opened
from server.upstreams import CHAT, ask, asking, connected, one_model, openai_upstream, until
from wire import Moment, Wire

from headgate.calls import held_keys

DATABASE: Final = ".headgate/headgate.db"
LEASE_S: Final = 9.0
PATIENCE: Final = "X-Headgate-Timeout: 20"
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@dataclass
class Site:
    """Gateway `one`, whose store can be taken away, gateway `two`, and the provider that both call."""

    one: House
    two: House
    stub: NumberedStub
    wire: Wire | None
    url: str
    streamed: bool
    returned: defaultdict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    _lock: apsw.Connection | None = None

    async def ask(self, house: House, key: str = "k1", *headers: str) -> Answer:
        answer = await ask(house, CHAT, f"Idempotency-Key: {key}", *(headers or (PATIENCE,)), **self.way)
        if answer.status == 200 and b"event: error" not in answer.body:
            assert not self.streamed or DONE in answer.body
            self.returned[key].add(answer.body)
        return answer

    @property
    def way(self) -> dict[str, Any]:
        return {"stream": self.streamed}

    def take_store_away(self) -> None:
        """PostgreSQL refuses gateway one; on SQLite another writer keeps the file locked."""
        if self.wire is not None:
            self.wire.refuse()
            return
        self._lock = apsw.Connection(DATABASE)
        self._lock.set_busy_timeout(5000)
        self._lock.execute("begin immediate")

    def bring_store_back(self) -> None:
        if self.wire is not None:
            self.wire.heal()
        elif self._lock is not None:
            self._lock.close()

    async def rows(self) -> list[tuple[str, str]]:
        """(key, state) of all keys."""
        asked = "select key, state from {}idempotency_keys order by key"
        if self.wire is None:
            with contextlib.closing(apsw.Connection(DATABASE)) as database:
                return list(database.execute(asked.format("")))
        connection = await asyncpg.connect(self.url)
        try:
            return [tuple(row) for row in await connection.fetch(asked.format("headgate."))]
        finally:
            await connection.close()

    async def check(self, *keys: str) -> None:
        """Each key has one answer at both gateways, every caller that got one got that one, and no key is held."""
        for key in keys:
            for house in (self.one, self.two):
                assert (await self.ask(house, key)).status == 200
            assert len(self.returned[key]) == 1
        assert await self.rows() == [(key, "done") for key in sorted(keys)]


@asynccontextmanager
async def site(database: str, *, streamed: bool = False, lease_s: float = LEASE_S) -> AsyncIterator[Site]:
    async with contextlib.AsyncExitStack() as stack:
        wire = None if database == "sqlite" else await stack.enter_async_context(Wire(database))
        stub = await stack.enter_async_context(NumberedStub())
        model = one_model(openai_upstream(stub), retry={"max_attempts": 1})
        shared = {**model, "jobs": {"lease_s": lease_s}}
        url = database if wire is None else f"{wire.url}?listen=off"
        one = await stack.enter_async_context(opened({**shared, "database": url}))
        two = await stack.enter_async_context(opened({**shared, "database": database}))
        place = Site(one, two, stub, wire, database, streamed)
        # Both are nodes from the start, so that a test disturbs nothing but what it means to.
        stub.let_all()
        for number, house in enumerate((one, two)):
            assert (await place.ask(house, f"warm-up {number}")).status == 200
        stub.hold_all()
        await _forget_warm_up(place)
        try:
            yield place
        finally:
            place.bring_store_back()


async def _forget_warm_up(place: Site) -> None:
    if place.wire is None:
        with contextlib.closing(apsw.Connection(DATABASE)) as database:
            database.set_busy_timeout(5000)
            database.execute("delete from idempotency_keys")
    else:
        connection = await asyncpg.connect(place.url)
        await connection.execute("delete from headgate.idempotency_keys")
        await connection.close()
    place.stub.forget()


@pytest.fixture
def play_trouble(play: Play, caplog: pytest.LogCaptureFixture) -> Play:
    """The store's trouble is an ERROR of its own; beside it nothing may be one, and nothing prints a traceback."""

    def run(scene: Any) -> None:
        async def main() -> None:
            await scene()
            assert [record for record in caplog.records if record.exc_info] == []
            errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
            assert [error for error in errors if " does not work: " not in error.getMessage()] == []
            caplog.clear()

        play(main)

    return run


# ---- A key never stays taken -------------------------------------------------------------------------------


def test_a_reservation_whose_response_was_lost_is_freed(play_trouble: Play, postgres_url: str) -> None:
    """Gateway one never learns that it holds the key. Gateway two gets it all the same."""

    async def scene() -> None:
        async with site(postgres_url) as place:
            place.stub.let_all()
            assert place.wire is not None
            lost = place.wire.cut_at(b"$4, 'reserved'")
            refused = await place.ask(place.one)
            assert (refused.status, refused.code) == (503, "store_unavailable")
            assert lost.done.is_set()
            answer = await place.ask(place.two)
            assert answer.status == 200
            assert "idempotent-replayed" not in answer.headers
            await place.check("k1")
            assert place.stub.calls == 1

    play_trouble(scene)


@both_ways
def test_a_client_that_leaves_during_the_reservation_leaves_the_key_free(
    play_trouble: Play, database: str, streamed: bool
) -> None:
    """No fault is needed for it, only a slow store. They leave at different moments of the reservation."""

    async def scene() -> None:
        async with site(database, streamed=streamed) as place:
            keys = [f"k{number}" for number in range(8)]
            if place.wire is None:
                place.take_store_away()
            else:
                place.wire.delay_s = 0.2

            async def leave_after(key: str, wait_s: float) -> None:
                wire = await connected(place.one)
                await wire.send(asking(CHAT, f"Idempotency-Key: {key}", **place.way))
                await asyncio.sleep(wait_s)
                wire.reset()

            await asyncio.gather(*(leave_after(key, 0.1 * (1 + n)) for n, key in enumerate(keys)))
            place.bring_store_back()
            made_for_leavers = place.stub.calls
            place.stub.let_all()
            # Gateway one writes in order: what its late reservations write is there before the others are asked for.
            assert (await place.ask(place.one, "later")).status == 200
            answers = await asyncio.gather(*(place.ask(place.two, key) for key in keys))
            assert [answer.status for answer in answers] == [200] * len(keys)
            await place.check("later", *keys)
            assert place.stub.calls <= made_for_leavers + 1 + len(keys)

    play_trouble(scene)


@both_ways
def test_a_failed_call_whose_key_could_not_be_freed_frees_it_later(
    play_trouble: Play, database: str, streamed: bool
) -> None:
    async def scene() -> None:
        async with site(database, streamed=streamed) as place:
            place.stub.fail(1)
            asked = asyncio.create_task(place.ask(place.one))
            await until(lambda: place.stub.calls == 1)
            place.take_store_away()
            place.stub.let_all()
            assert (await asked).status == 502
            place.bring_store_back()
            assert (await place.ask(place.two)).status == 200
            await place.check("k1")
            assert place.stub.calls == 2

    play_trouble(scene)


# ---- A key has one answer -----------------------------------------------------------------------------------


@both_ways
def test_an_answer_that_could_not_be_stored_is_returned_and_stored_later(
    play_trouble: Play, database: str, streamed: bool
) -> None:
    """While the gateway's own lease runs. A retry at the same gateway gets it from memory, the others afterwards."""

    async def scene() -> None:
        async with site(database, streamed=streamed) as place:
            asked = asyncio.create_task(place.ask(place.one))
            await until(lambda: place.stub.calls == 1)
            place.take_store_away()
            place.stub.let_all()
            first = await asked
            assert first.status == 200
            assert "idempotent-replayed" not in first.headers
            again = await place.ask(place.one)
            assert (again.status, again.body) == (200, first.body)
            assert again.headers["idempotent-replayed"] == "true"
            other = await ask(place.one, CHAT, "Idempotency-Key: k1", stream=streamed, temperature=0.5)
            assert (other.status, other.code) == (409, "idempotency_key_mismatch")
            place.bring_store_back()
            elsewhere = await place.ask(place.two)
            assert elsewhere.body == first.body
            assert elsewhere.headers["idempotent-replayed"] == "true"
            await place.check("k1")
            assert place.stub.calls == 1

    play_trouble(scene)


@both_ways
@pytest.mark.parametrize("cuts", [1, 2])
def test_the_caller_whose_call_was_made_is_not_answered_as_a_replay(
    play_trouble: Play, postgres_url: str, streamed: bool, cuts: int
) -> None:
    """The answer was recorded, and only the database's response was lost, once or twice."""

    async def scene() -> None:
        async with site(postgres_url, streamed=streamed) as place:
            assert place.wire is not None
            lost = [place.wire.cut_at(b"set state = 'done'") for _ in range(cuts)]
            place.stub.let_all()
            first = await place.ask(place.one)
            assert all(cut.done.is_set() for cut in lost)
            assert first.status == 200
            assert "idempotent-replayed" not in first.headers
            for house in (place.one, place.two):
                again = await place.ask(house)
                assert again.headers["idempotent-replayed"] == "true"
            await place.check("k1")
            assert place.stub.calls == 1

    play_trouble(scene)


@both_ways
def test_after_its_lease_a_gateway_without_a_store_returns_no_answer(
    play_trouble: Play, postgres_url: str, streamed: bool
) -> None:
    """Another gateway may have taken the key over by then. When the store is back, the answer is recorded if none has."""

    async def scene() -> None:
        async with site(postgres_url, streamed=streamed, lease_s=3.0) as place:
            asked = asyncio.create_task(place.ask(place.one))
            await until(lambda: place.stub.calls == 1)
            place.take_store_away()
            await until(lambda: place.one.gateway.durable.node.lease_left_s() <= 0)
            place.stub.let_all()
            refused_properly(await asked, streamed=streamed)
            refused_properly(await place.ask(place.one), streamed=False)
            place.bring_store_back()
            assert (await place.ask(place.two)).status == 200
            await place.check("k1")
            assert place.stub.calls <= 2

    play_trouble(scene)


@both_ways
def test_a_gateway_that_was_cut_off_past_its_lease_returns_what_the_other_recorded(
    play_trouble: Play, postgres_url: str, streamed: bool
) -> None:
    """The other gateway has taken the key over, and the late answer is worth nothing any more."""

    async def scene() -> None:
        async with site(postgres_url, streamed=streamed, lease_s=3.0) as place:
            asked = asyncio.create_task(place.ask(place.one))
            await until(lambda: place.stub.calls == 1)
            place.take_store_away()
            taken_over = asyncio.create_task(place.ask(place.two))
            await until(lambda: place.stub.calls == 2)
            place.stub.let_all()
            recorded = await taken_over
            assert recorded.status == 200
            assert "idempotent-replayed" not in recorded.headers
            refused_properly(await asked, streamed=streamed)
            place.bring_store_back()
            await place.check("k1")
            assert place.stub.calls == 2

    play_trouble(scene)


@both_ways
def test_cuts_at_any_statement_leave_each_key_with_one_call_and_one_answer(
    play_trouble: Play, postgres_url: str, streamed: bool
) -> None:
    """Every key is asked for at both gateways again and again while gateway one loses its connections."""
    rng = random.Random(7)
    statements = (
        b"$4, 'reserved'",
        b"set state = 'sent'",
        b"set state = 'done'",
        b"for update",
        b"update headgate.nodes",
    )

    async def scene() -> None:
        async with site(postgres_url, streamed=streamed) as place:
            assert place.wire is not None
            place.stub.let_all()
            keys = [f"key {number}" for number in range(30)]
            statuses: set[int] = set()

            async def insist(key: str, house: House) -> None:
                answer = await place.ask(house, key)
                while answer.status != 200:
                    statuses.add(answer.status)
                    await asyncio.sleep(0.05)
                    answer = await place.ask(house, key)

            for start in range(0, len(keys), 3):
                for _ in range(2):
                    place.wire.cut_at(rng.choice(statements), rng.choice(list(Moment)))
                wanted = [
                    insist(key, house) for key in keys[start : start + 3] for house in (place.one, place.two)
                ]
                await asyncio.gather(*wanted)
            place.wire.heal()
            await place.check(*keys)
            assert place.stub.calls == len(keys)
            assert statuses <= {409, 503}

    play_trouble(scene)


def refused_properly(answer: Answer, *, streamed: bool) -> None:
    """503; a stream that had begun ends with an error event instead, and without its end marker."""
    if streamed:
        assert answer.status == 200
        assert b"event: error" in answer.body
        assert b"store_unavailable" in answer.body
        assert DONE not in answer.body
    else:
        assert (answer.status, answer.code) == (503, "store_unavailable")
        assert 1 <= int(answer.headers["retry-after"]) <= 60


@both_ways
def test_what_does_not_fit_into_memory_is_refused_and_its_key_is_free_again(
    play_trouble: Play, database: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_keys, "MAX_KEPT_BYTES", 10)

    async def scene() -> None:
        async with site(database, streamed=streamed) as place:
            asked = asyncio.create_task(place.ask(place.one))
            await until(lambda: place.stub.calls == 1)
            place.take_store_away()
            place.stub.let_all()
            refused_properly(await asked, streamed=streamed)
            place.bring_store_back()
            assert (await place.ask(place.two)).status == 200
            await place.check("k1")
            assert place.stub.calls == 2

    play_trouble(scene)


@both_ways
def test_an_orderly_stop_stores_what_was_kept(play_trouble: Play, postgres_url: str, streamed: bool) -> None:
    """The store returned, and the gateway stops before its next renewal."""

    async def scene() -> None:
        async with site(postgres_url, streamed=streamed, lease_s=3000) as place:
            asked = asyncio.create_task(place.ask(place.one))
            await until(lambda: place.stub.calls == 1)
            place.take_store_away()
            place.stub.let_all()
            first = await asked
            place.bring_store_back()
            await place.one.gateway.aclose(1.0)
            answer = await place.ask(place.two)
            assert answer.body == first.body
            assert answer.headers["idempotent-replayed"] == "true"
            assert place.stub.calls == 1

    play_trouble(scene)


def test_the_first_sharer_pays_when_the_first_caller_has_left(play: Play, tmp_path: Path) -> None:
    """Exactly one caller of a key gets its answer as its own, and it counts for that caller's limits."""

    async def scene() -> None:
        async with site("sqlite") as place:
            gone = await connected(place.one)
            await gone.send(asking(CHAT, "Idempotency-Key: k1"))
            await until(lambda: place.stub.calls == 1)
            sharers = [asyncio.create_task(place.ask(place.one)) for _ in range(3)]
            await until(lambda: sum(work.waiting for work in _running(place.one)) == 4)
            gone.reset()
            await until(lambda: sum(work.waiting for work in _running(place.one)) == 3)
            place.stub.let_all()
            answers = await asyncio.gather(*sharers)
            replayed = ["idempotent-replayed" in answer.headers for answer in answers]
            assert sorted(replayed) == [False, True, True]
            await place.check("k1")
            assert place.stub.calls == 1

    assert tmp_path == Path.cwd()
    play(scene)


def _running(house: House) -> list[Any]:
    return list(house.gateway.keyed._once._running.values())
