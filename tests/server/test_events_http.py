"""`GET /events`: what happens, as it happens; resumable, bounded, and nobody else's business."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from server.http.front_stage import Play, Wire
from server.keyed_stage import keyed_door
from server.stage import House, opened
from server.upstreams import CHAT, ask, connected, front_of, look, one_model, until

from headgate.core.access import Role
from headgate.core.call import Lane
from headgate.core.events import BreakerChanged, Responded, StrayAnswer
from headgate.observe.ring import MOST_KEPT
from headgate.server import events

INSTANT = {"provider": "simulated", "latency_s": 0}
FLAKY = {"provider": "simulated", "latency_s": 0, "script": ["transient", "ok"]}
OTHER_RUN = f"{'0' * 32}-7"


class Reader:
    """A client that follows the events."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._chunks = wire.chunks()
        self._text = ""
        self.last_id: str | None = None
        self.comments = 0

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                while "\n\n" not in self._text:
                    self._text += (await anext(self._chunks)).decode()
                block, _, self._text = self._text.partition("\n\n")
                self.comments += block.startswith(":")
                said = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
                self.last_id = said.get("id", self.last_id)
                if "data" in said:
                    found: dict[str, Any] = json.loads(said["data"])
                    return found

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """All up to the first of this type."""
        seen = [await self.next()]
        while seen[-1]["type"] != kind:
            seen.append(await self.next())
        return seen

    async def ended(self) -> bool:
        return [chunk async for chunk in self._chunks] == []

    def leave(self) -> None:
        self._wire.writer.close()


@asynccontextmanager
async def following(house: House, query: str = "", *headers: str) -> AsyncIterator[Reader]:
    wire = await connected(house)
    await wire.send("\r\n".join([f"GET /events{query} HTTP/1.1", "Host: a", *headers, "", ""]).encode())
    status, told = await wire.head()
    assert (status, told["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert told["x-request-id"].startswith("req_")
    reader = Reader(wire)
    try:
        yield reader
    finally:
        reader.leave()


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


def emit(house: House, *told: Any) -> None:
    for event in told:
        house.gateway._fanout(event)


def responded(request_id: str, **more: Any) -> Responded:
    fields: dict[str, Any] = {
        "agent_id": None,
        "upstream": "u",
        "attempts": 1,
        "latency_ms": 1,
        "queue_ms": 0,
    }
    return Responded(request_id=request_id, lane=Lane.INTERACTIVE, **{"model": "m", **fields, **more})


def test_a_call_is_told_as_it_happens(play: Play) -> None:
    """Types, moments and fields are those of the documented events; no prompt and no answer is among them."""

    async def scene() -> None:
        async with opened(one_model(FLAKY)) as house, following(house) as reader:
            answer = await ask(house, CHAT)
            told = await reader.until("Responded")
            assert [event["type"] for event in told] == [
                "AttemptEnded",
                "RetryScheduled",
                "AttemptEnded",
                "Responded",
            ]
            assert all(event["at"].startswith("20") and event["at"].endswith("Z") for event in told)
            assert told[0]["failure"]["kind"] == "transient"
            assert told[-1]["request_id"] == answer.headers["x-request-id"]
            assert told[-1]["attempts"] == 2
            assert "hello" not in json.dumps(told)

    play(scene)


def test_a_reader_goes_on_where_it_was(play: Play) -> None:
    """Neither twice nor never, by the header that browsers send and by the query."""

    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house:
            async with following(house) as reader:
                emit(house, *(StrayAnswer(request_id=f"r-{number}") for number in range(3)))
                assert (await reader.next())["request_id"] == "r-0"
                assert (await reader.next())["request_id"] == "r-1"
            place = reader.last_id
            emit(house, StrayAnswer(request_id="r-3"))
            for query, headers in ((f"?after={place}", ()), ("?after=0", (f"Last-Event-ID: {place}",))):
                async with following(house, query, *headers) as again:
                    assert [(await again.next())["request_id"] for _ in range(2)] == ["r-2", "r-3"]
            async with following(house, "?after=0") as late:
                assert [(await late.next())["request_id"] for _ in range(4)] == ["r-0", "r-1", "r-2", "r-3"]

    play(scene)


def test_what_was_missed_is_told_as_a_gap(play: Play) -> None:
    """A ring forgets; a reader that comes back too late must not believe that nothing happened."""

    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house:
            async with following(house) as reader:
                emit(house, StrayAnswer(request_id="first"))
                await reader.next()
            emit(house, *(StrayAnswer(request_id=f"r-{number}") for number in range(MOST_KEPT + 5)))
            async with following(house, f"?after={reader.last_id}") as again:
                gap = await again.next()
                assert (gap["type"], gap["lost"]) == ("gap", 5)
                assert (await again.next())["request_id"] == "r-5"
            async with following(house, f"?after={OTHER_RUN}&types=Responded") as stranger:
                gap = await stranger.next()
                assert (gap["type"], gap["lost"]) == ("gap", None)

    play(scene)


def test_a_reader_that_dawdles_costs_no_memory_and_hears_of_its_gap(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing while far more happens than the ring and the socket hold; nobody waits for it."""
    most = 30_000
    monkeypatch.setattr(events, "GATHER_S", 0.002)

    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house, following(house) as reader:
            for number in range(most):
                emit(house, StrayAnswer(request_id=f"r-{number}-{'x' * 200}"))
                if number % 500 == 0:
                    await asyncio.sleep(0)
            assert len(house.serving._ring._kept) == MOST_KEPT
            # What was handed to the socket and is still here: a piece, and what the kernel's reader left of another.
            unsent = sum(one._transport.get_write_buffer_size() for one in front_of(house).connections)
            assert unsent < 1_000_000
            emit(house, StrayAnswer(request_id="last"))
            heard, lost = 0, 0
            while True:
                event = await reader.next()
                if event["type"] == "gap":
                    lost += event["lost"]
                    continue
                heard += 1
                if event["request_id"] == "last":
                    break
            assert lost > 0
            assert heard + lost == most + 1

    play(scene)


def test_filters_by_type_and_by_model(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house:
            breaker = BreakerChanged(upstream="u", state="opened")
            emit(house, responded("r-1"), breaker, responded("r-2", model="other"), responded("r-3"))
            for query, expected in (
                ("types=BreakerChanged", [None]),
                ("types=BreakerChanged,Responded", ["r-1", None, "r-2", "r-3"]),
                ("model=m", ["r-1", "r-3"]),
                ("model=other&types=Responded", ["r-2"]),
            ):
                async with following(house, f"?after=0&{query}") as reader:
                    assert [(await reader.next()).get("request_id") for _ in expected] == expected

    play(scene)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("types=Answered", "types"),
        ("types=", "types"),
        ("after=yesterday", "after"),
        ("after=-1", "after"),
        ("after=a-%C2%B2", "after"),
        (f"after=a-{'9' * 30}", "after"),
        ("since=1", "since"),
    ],
)
def test_what_makes_no_sense_is_refused(play: Play, query: str, param: str) -> None:
    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house:
            answer = await look(house, f"/events?{query}")
            assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, param)

    play(scene)


def test_everybody_sees_what_is_theirs(play: Play) -> None:
    """A tenant's key sees the tenant's events, a screen's also those of gates, an operator's all."""

    async def scene() -> None:
        async with keyed_door() as door, opened(one_model(INSTANT), access=door.access) as house:
            keys = {role: await door.key(role=role, tenant="blue") for role in Role}
            red = await door.key(tenant="red")
            for key in (keys[Role.CALL], red):
                assert (await ask(house, CHAT, bearer(key))).status == 200
            emit(house, BreakerChanged(upstream="u", state="opened"))
            seen = {}
            for role, key in keys.items():
                async with following(house, "?after=0", bearer(key)) as reader:
                    emit(house, responded("mark", tenant="blue"))
                    told = [await reader.next()]
                    while told[-1].get("request_id") != "mark":
                        told.append(await reader.next())
                    seen[role] = {(event["type"], event.get("tenant")) for event in told}
            blue = {("AttemptEnded", "blue"), ("Responded", "blue")}
            gates = {("BreakerChanged", None)}
            assert seen[Role.CALL] == blue
            assert seen[Role.READ] == blue | gates
            assert seen[Role.OPERATE] == blue | gates | {("AttemptEnded", "red"), ("Responded", "red")}
            assert (await look(house, "/events")).status == 401

    play(scene)


def test_a_key_that_is_revoked_ends_its_stream(play: Play) -> None:
    """A stream may last for days; who is shut out must not read on until it is over."""

    async def scene() -> None:
        async with keyed_door() as door, opened(one_model(INSTANT), access=door.access) as house:
            key, other = await door.key(role=Role.OPERATE), await door.key(role=Role.OPERATE)
            async with (
                following(house, "", bearer(key)) as reader,
                following(house, "", bearer(other)) as kept,
            ):
                emit(house, StrayAnswer(request_id="before"))
                assert (await reader.next())["request_id"] == "before"
                found = await door.store.access_keys()
                revoked = next(one.key.id for one in found if key.endswith(one.key.last_four))
                await door.store.revoke_access_key(revoked, now=time.time())
                await door.access.refresh()
                emit(house, StrayAnswer(request_id="after"))
                end = await reader.next()
                assert (end["type"], end["reason"]) == ("end", "unauthorized")
                assert await reader.ended()
                assert [(await kept.next())["request_id"] for _ in range(2)] == ["before", "after"]

    play(scene)


def test_too_many_readers_of_one_tenant_are_refused_and_places_come_back(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_READERS", 2)

    async def scene() -> None:
        async with keyed_door() as door, opened(one_model(INSTANT), access=door.access) as house:
            mine, operators = await door.key(), await door.key(role=Role.OPERATE)
            async with following(house, "", bearer(mine)), following(house, "", bearer(mine)):
                refused = await look(house, "/events", bearer(mine))
                assert (refused.status, refused.code) == (429, "rate_limited")
                async with following(house, "", bearer(operators)):
                    pass
            readers = house.serving._events._readers
            await until(lambda: not readers)
            async with following(house, "", bearer(mine)):
                pass

    play(scene)


def test_silence_is_told_and_moves_the_place(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies cut silent connections. Events that a filter leaves out are no gap for who comes back."""
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.1)

    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house, following(house, "?types=Responded") as reader:
            emit(house, *(StrayAnswer(request_id=f"r-{number}") for number in range(9)))
            coming = asyncio.create_task(reader.next())
            while reader.comments == 0:  # noqa: ASYNC110 - counted in passing by who reads
                await asyncio.sleep(0.01)
            emit(house, responded("r-9"))
            await coming
            assert reader.last_id is not None
            assert reader.last_id.endswith("-10")

    play(scene)


def test_a_stop_ends_the_stream_after_what_was_being_served(play: Play) -> None:
    """A reader hears how the last calls ended, then of the end; it does not keep the process from going."""

    async def scene() -> None:
        slow = {"provider": "simulated", "latency_s": 0.3}
        async with opened(one_model(slow)) as house, following(house) as reader:
            call = asyncio.ensure_future(ask(house, CHAT))
            await until(lambda: not house.all_free)
            stopping = asyncio.ensure_future(house.serving.stop(10.0))
            await asyncio.sleep(0)
            refused = await look(house, "/events")
            assert (refused.status, refused.code) == (503, "draining")
            told = await reader.until("end")
            assert told[-1]["reason"] == "draining"
            assert "Responded" in {event["type"] for event in told}
            assert await reader.ended()
            async with asyncio.timeout(5):
                await stopping
            assert (await call).status == 200

    play(scene)


def test_head_answers_without_a_stream(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house:
            wire = await connected(house)
            await wire.send(b"HEAD /events HTTP/1.1\r\nHost: a\r\n\r\n")
            async with asyncio.timeout(5):
                assert (await wire.answer(to_head=True)).status == 200
            wire.writer.close()

    play(scene)


def test_what_utf8_cannot_hold_is_told_escaped(play: Play) -> None:
    """Half a surrogate pair in an id must not end anybody's stream."""

    async def scene() -> None:
        async with opened(one_model(INSTANT)) as house, following(house) as reader:
            emit(house, StrayAnswer(request_id="r-\ud800"))
            assert (await reader.next())["request_id"] == "r-\ud800"

    play(scene)
