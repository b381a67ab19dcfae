"""What goes into an outbox arrives once, in its order, however long the gateway is away."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest
from client.stub import Fault, Stub, listening, stubbed
from conftest import Figure

from headgate.client import AsyncClient, Client, Outbox
from headgate.client.outbox_file import OutboxFile
from headgate.core.errors import (
    InvalidRequest,
    KeyMismatch,
    SettingsError,
    StateConflict,
    StoreUnavailable,
    Unauthorized,
)
from headgate.core.outbox import EntryState, Standing
from headgate.planner import virtual
from headgate.planner.virtual import World

HOUR = 3600.0
Scene = Callable[[Stub, Outbox, AsyncClient, World], Coroutine[Any, Any, None]]


def play(scene: Scene, *faults: Fault) -> None:
    async def main(world: World) -> None:
        async with stubbed(*faults) as stub, AsyncClient(stub.url, clock=world.clock) as client:
            with Outbox("outbox.db", clock=world.clock) as outbox:
                await scene(stub, outbox, client, world)

    virtual.run(main)


def test_adding_needs_no_network_and_is_there_for_the_next_process() -> None:
    with Outbox("outbox.db") as outbox:
        added = outbox.add("summarise", {"text": "a"}, priority=3)
    with Outbox("outbox.db") as outbox:
        (entry,) = outbox.list()
    assert entry == added
    assert bytes(entry.body) == b'{"task":"summarise","input":{"text":"a"},"priority":3}'
    assert Path("outbox.db").stat().st_mode & 0o777 == 0o600


def test_the_same_action_written_down_twice_is_one_entry() -> None:
    with Outbox("outbox.db") as outbox:
        first = outbox.add("t", "a", idempotency_key="click")
        assert outbox.add("t", "a", idempotency_key="click") == first
        with pytest.raises(KeyMismatch):
            outbox.add("t", "b", idempotency_key="click")
        assert outbox.list() == [first]


def test_a_file_that_is_gone_ends_the_flush_with_its_own_error() -> None:
    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        outbox.add("t", "a")

        def lose(request: Any) -> Fault:
            Path("outbox.db").rename("elsewhere.db")
            return Fault.NONE

        stub.otherwise = lose
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await outbox.flush(client)

    play(scene)


def test_entries_are_sent_in_their_order_with_their_own_keys() -> None:
    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        entries = [outbox.add("t", number) for number in range(5)]
        flushed = await outbox.flush(client)
        assert (flushed.sent, flushed.waiting, flushed.trouble) == (5, 0, None)
        assert stub.inputs == [0, 1, 2, 3, 4]
        assert [request.key for request in stub.seen] == [entry.key for entry in entries]
        assert [entry.standing.server_id for entry in outbox.list(state="sent")] == [
            f"job-{number}" for number in range(5)
        ]

    play(scene)


def test_a_lost_answer_is_asked_for_again_and_is_one_job() -> None:
    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        outbox.add("t", "a")
        outbox.add("t", "b")
        flushed = await outbox.flush(client)
        assert (flushed.sent, flushed.waiting) == (0, 2)
        assert flushed.trouble is not None
        assert (await outbox.flush(client)).sent == 2
        assert stub.inputs == ["a", "b"]

    play(scene, Fault.CUT_AFTER)


@pytest.mark.parametrize(
    "fault", [Fault.FULL, Fault.AWAY, Fault.CUT_BEFORE, Fault.PROXY, Fault.IN_PROGRESS, Fault.QUOTA]
)
def test_trouble_costs_an_entry_nothing_and_stops_the_flush(fault: Fault) -> None:
    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        entry = outbox.add("t", "a")
        for _ in range(10):
            stub.faults.append(fault)
            flushed = await outbox.flush(client)
            assert flushed.trouble is not None
        assert len(stub.seen) == 10
        standing = outbox.get(entry.id).standing
        assert (standing.state, standing.failures) == (EntryState.WAITING, 0)
        assert (await outbox.flush(client)).sent == 1

    play(scene)


def test_three_answered_failures_and_the_stream_goes_on() -> None:
    """One wrong entry must not hold up a stream for ever; and it is kept, with the reason."""

    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        bad = outbox.add("t", "bad")
        outbox.add("t", "good")
        flushed = await outbox.flush(client)
        assert (flushed.sent, flushed.failed, flushed.waiting) == (1, 1, 0)
        assert stub.inputs == ["good"]
        assert world.clock.now() > 3.0
        assert outbox.get(bad.id).standing.reason == "invalid_request: told invalid_request"
        assert [entry.id for entry in outbox.list(state="failed")] == [bad.id]

    play(scene, *[Fault.WRONG] * 3)


def test_a_failed_entry_can_be_sent_again_under_its_key() -> None:
    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        entry = outbox.add("t", "a")
        await outbox.flush(client)
        assert outbox.retry(entry.id).state is EntryState.WAITING
        assert (await outbox.flush(client)).sent == 1
        assert {request.key for request in stub.seen} == {entry.key}
        with pytest.raises(StateConflict, match="sent"):
            outbox.retry(entry.id)

    play(scene, *[Fault.WRONG] * 3)


def test_discarded_entries_are_not_sent_and_sent_ones_cannot_be_discarded() -> None:
    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        gone, kept = outbox.add("t", "gone"), outbox.add("t", "kept")
        outbox.discard(gone.id)
        await outbox.flush(client)
        assert stub.inputs == ["kept"]
        with pytest.raises(StateConflict, match="the gateway has it"):
            outbox.discard(kept.id)
        with pytest.raises(InvalidRequest, match="no entry"):
            outbox.discard(gone.id)

    play(scene)


def test_a_wrong_key_ends_the_flush_loudly_and_fails_no_entry() -> None:
    """An operator's mistake must not fill the outbox with failures."""

    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        outbox.add("t", "a")
        for _ in range(4):
            stub.faults.append(Fault.STRANGER)
            with pytest.raises(Unauthorized):
                await outbox.flush(client)
        (entry,) = outbox.list()
        assert (entry.state, entry.standing.failures) == (EntryState.WAITING, 0)

    play(scene)


def test_streams_do_not_wait_for_each_other() -> None:
    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        stub.otherwise = lambda request: Fault.WRONG if b"bad" in request.body else Fault.NONE
        outbox.add("t", "bad", stream="one")
        outbox.add("t", "first", stream="two")
        outbox.add("t", "second", stream="two")
        flushed = await outbox.flush(client)
        assert (flushed.sent, flushed.failed) == (2, 1)
        assert stub.inputs == ["first", "second"]

    play(scene)


def test_past_the_horizon_an_unanswered_entry_is_not_sent_blindly() -> None:
    """The gateway forgets keys after 72 h: to send it then could be a second job."""

    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        entry = outbox.add("t", "a")
        await outbox.flush(client)
        await world.clock.sleep(61 * HOUR)
        flushed = await outbox.flush(client)
        assert (flushed.sent, flushed.failed, len(stub.seen)) == (0, 1, 1)
        assert "outcome unknown" in str(outbox.get(entry.id).standing.reason)
        outbox.retry(entry.id)
        assert (await outbox.flush(client)).sent == 1
        assert len(stub.jobs) == 1

    play(scene, Fault.CUT_AFTER)


def test_48_hours_offline_end_with_one_job_per_entry_in_order(figure: Figure) -> None:
    """Entries come in all the while; the gateway is back for moments in which answers get lost."""

    async def main(world: World) -> None:
        async with stubbed() as closed:
            pass
        stub = Stub(port=closed.port)
        with Outbox("outbox.db", clock=world.clock) as outbox:
            async with AsyncClient(stub.url, clock=world.clock) as client:
                running = asyncio.create_task(outbox.run(client))
                for hour in range(48):
                    for number in range(4):
                        outbox.add("t", [hour, number], stream=f"stream {number % 2}")
                    if hour in {10, 30}:
                        stub.faults.extend([Fault.NONE, Fault.CUT_AFTER, Fault.CUT_BEFORE, Fault.FULL])
                        async with listening(stub, port=stub.port):
                            await world.clock.sleep(200)
                            await world.clock.sleep(110)
                    await world.clock.sleep(HOUR)
                assert outbox.list(state="waiting")
                async with listening(stub, port=stub.port):
                    await world.clock.sleep(HOUR)
                running.cancel()
            assert {entry.state for entry in outbox.list()} == {EntryState.SENT}
            assert {entry.standing.server_id for entry in outbox.list()} == {job["id"] for job in stub.jobs}
        assert len(stub.jobs) == 192
        for stream in (0, 1):
            sent = [pair for pair in stub.inputs if pair[1] % 2 == stream]
            assert sent == sorted(sent)
        figure("48 h offline (virtual time)", f"192 entries, {len(stub.jobs)} jobs, order kept")

    virtual.run(main)


def test_only_one_sends_from_a_file_at_a_time() -> None:
    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        outbox.add("t", "a")
        other = Outbox("outbox.db", clock=world.clock)
        first, second = await asyncio.gather(outbox.flush(client), other.flush(client))
        assert sorted([first.busy, second.busy]) == [False, True]
        assert len(stub.seen) == 1
        assert not (await other.flush(client)).busy
        other.close()

    play(scene)


def test_what_was_sent_is_forgotten_after_a_week() -> None:
    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        outbox.add("t", "a")
        await outbox.flush(client)
        await world.clock.sleep(6 * 24 * HOUR)
        await outbox.flush(client)
        assert len(outbox.list()) == 1
        await world.clock.sleep(2 * 24 * HOUR)
        await outbox.flush(client)
        assert outbox.list() == []

    play(scene)


def test_bookmarks_go_through_it_as_well() -> None:
    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        outbox.add_bookmark("https://example.org/A", tags=["x"])
        await outbox.flush(client)
        (request,) = stub.seen
        assert (request.path, request.body) == (
            "/v1/bookmarks",
            b'{"url":"https://example.org/A","tags":["x"]}',
        )

    play(scene)


def test_a_file_of_somebody_else_is_left_alone() -> None:
    other = apsw.Connection("other.db")
    other.execute("create table things (x)")
    other.close()
    with pytest.raises(SettingsError, match="no outbox"):
        Outbox("other.db")


def test_a_script_can_flush_too() -> None:
    with Outbox("outbox.db") as outbox, Client("http://127.0.0.1:9", timeout_s=1.0) as client:
        outbox.add("t", "a")
        flushed = client.flush(outbox)
        assert flushed.trouble is not None
        assert flushed.waiting == 1


def test_a_write_that_comes_late_changes_nothing() -> None:
    """The thread of a flush that was cancelled may still be at it when the next one has begun."""
    file = OutboxFile("outbox.db")
    entry = file.add(stream="s", path="/v1/jobs", body=b"{}", key="k", now=0.0)
    begun = file.write(entry, Standing(doubt_since=1.0), now=1.0)
    assert begun is not None
    assert file.write(entry, Standing(), now=2.0) is None
    assert file.find(entry.id) == begun
    file.close()


def test_a_model_that_the_key_may_not_use_costs_its_entry_and_not_the_stream() -> None:
    """It was taken for a wrong key: the stream waited for ever behind one entry."""

    async def scene(stub: Stub, outbox: Outbox, client: AsyncClient, world: World) -> None:
        for name in ("secret", "open"):
            outbox.add("t", name)
        stub.otherwise = lambda seen: Fault.OTHER_MODEL if b"secret" in seen.body else Fault.NONE
        flushed = await outbox.flush(client)
        assert (flushed.sent, flushed.failed, stub.inputs) == (1, 1, ["open"])
        (failed,) = outbox.list(state="failed")
        assert "model_not_allowed" in (failed.standing.reason or "")
        assert (await outbox.flush(client)).failed_earlier == 1

    play(scene)
