"""Direct calls under an idempotency key, through the real gateway and a real store on virtual time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import wiring
from headgate.core.answer import Reply
from headgate.core.errors import CallFailed, InvalidRequest, KeyInProgress, KeyMismatch, StateConflict
from headgate.gateway import Gateway
from headgate.planner import virtual
from headgate.planner.virtual import World

HELLO = [{"role": "user", "content": "hello"}]


def gateway(world: World, folder: Path, **upstream: Any) -> Gateway:
    """A gateway of one simulated upstream; its ids tell gateways apart."""
    idempotency = upstream.pop("idempotency", {})
    settings = wiring.read_settings(
        {
            "data_dir": str(folder),
            "idempotency": idempotency,
            "jobs": {"lease_s": 3600},  # three virtual days need not be renewed every ten seconds
            "models": {"m": {"upstreams": [{"provider": "simulated", "latency_s": 1.0, **upstream}]}},
        },
        env={},
    )
    return wiring.build(settings, clock=world.clock, chance=world.chance)


def calls(gate: Gateway) -> int:
    made: int = gate.routes.find("m").upstreams[0].provider.calls  # type: ignore[attr-defined]
    return made


async def ask(gate: Gateway, key: str = "k", content: str = "hello", **options: Any) -> Reply:
    messages = [{"role": "user", "content": content}]
    return await gate.complete(model="m", messages=messages, idempotency_key=key, **options)


def test_the_same_key_gets_the_same_answer_and_one_call(tmp_path: Path) -> None:
    """Promise 2: a client that repeats itself pays once, and is told that it was told before."""

    async def main(world: World) -> None:
        gate = gateway(world, tmp_path)
        first, again = await ask(gate), await ask(gate)
        assert (first.replayed, again.replayed) == (False, True)
        assert (again.content, again.request_id) == (first.content, first.request_id)
        assert calls(gate) == 1
        await gate.aclose()

    virtual.run(main)


def test_duplicates_in_flight_share_one_call(tmp_path: Path) -> None:
    """An impatient client's second try must not double the bill while the first is on its way."""

    async def main(world: World) -> None:
        gate = gateway(world, tmp_path)
        replies = await asyncio.gather(*(ask(gate) for _ in range(100)))
        assert len({reply.content for reply in replies}) == 1
        assert calls(gate) == 1
        await gate.aclose()

    virtual.run(main)


def test_another_request_under_the_key_is_refused_in_flight_and_after(tmp_path: Path) -> None:
    """A key names one request: anything else is the client's mistake, and silence would hide it."""

    async def main(world: World) -> None:
        gate = gateway(world, tmp_path)
        running = asyncio.create_task(ask(gate))
        await world.clock.sleep(0.5)
        with pytest.raises(KeyMismatch):
            await ask(gate, content="something else")
        await running
        with pytest.raises(KeyMismatch):
            await ask(gate, content="something else")
        assert calls(gate) == 1
        await gate.aclose()

    virtual.run(main)


def test_a_failed_outcome_is_not_told_again(tmp_path: Path) -> None:
    """A stored 503 helps nobody: the key runs again."""

    async def main(world: World) -> None:
        gate = gateway(world, tmp_path, script=["transient", "ok"])
        once = headgate.RetryPolicy(max_attempts=1)
        with pytest.raises(CallFailed):
            await ask(gate, retry=once)
        assert not (await ask(gate, retry=once)).replayed
        assert calls(gate) == 2
        await gate.aclose()

    virtual.run(main)


def test_the_call_lives_while_one_sharer_waits(tmp_path: Path) -> None:
    """Who asked first may hang up; who shares still gets the answer. When all have left, the call stops."""

    async def main(world: World) -> None:
        gate = gateway(world, tmp_path)
        first = asyncio.create_task(ask(gate))
        await world.clock.sleep(0.2)
        second = asyncio.create_task(ask(gate))
        await world.clock.sleep(0.2)
        first.cancel()
        assert (await second).content
        lonely = asyncio.create_task(ask(gate, key="other"))
        await world.clock.sleep(0.2)
        lonely.cancel()
        await world.clock.sleep(0.2)
        provider = gate.routes.find("m").upstreams[0].provider
        assert (calls(gate), provider.cancelled) == (2, 1)  # type: ignore[attr-defined]
        assert not (await ask(gate, key="other")).replayed
        await gate.aclose()

    virtual.run(main)


def test_a_sharers_deadline_is_its_own(tmp_path: Path) -> None:
    """It is told to come back, and the call goes on for whoever has more patience."""

    async def main(world: World) -> None:
        gate = gateway(world, tmp_path)
        patient = asyncio.create_task(ask(gate))
        await world.clock.sleep(0.2)
        with pytest.raises(KeyInProgress):
            await ask(gate, deadline_s=0.3)
        assert (await patient).content
        assert calls(gate) == 1
        await gate.aclose()

    virtual.run(main)


def test_a_sharer_with_time_left_runs_it_when_the_first_ran_out_of_time(tmp_path: Path) -> None:
    """The first caller's hurry is not the second's."""

    async def main(world: World) -> None:
        gate = gateway(world, tmp_path)
        hasty = asyncio.create_task(ask(gate, deadline_s=0.5))
        await world.clock.sleep(0.2)
        assert (await ask(gate, deadline_s=30)).content
        with pytest.raises(headgate.DeadlineExceeded):
            await hasty
        await gate.aclose()

    virtual.run(main)


def test_two_processes_share_a_key_through_the_store(tmp_path: Path) -> None:
    """The second gateway waits for the first one's answer instead of calling too."""

    async def main(world: World) -> None:
        one, two = gateway(world, tmp_path), gateway(world, tmp_path)
        first = asyncio.create_task(ask(one))
        await world.clock.sleep(0.3)
        reply = await ask(two)
        assert reply.replayed
        assert reply.content == (await first).content
        assert (calls(one), calls(two)) == (1, 0)
        await one.aclose()
        await two.aclose()

    virtual.run(main)


@pytest.mark.parametrize(("unknown", "runs"), [("rerun", True), ("refuse", False)])
def test_after_a_crash_past_sending_the_operators_policy_decides(
    tmp_path: Path, unknown: str, runs: bool
) -> None:
    """Nobody knows whether the provider did the work; the policy is declared, not accidental."""

    async def main(world: World) -> None:
        dying = gateway(world, tmp_path, latency_s=1000.0)
        call = asyncio.create_task(ask(dying, deadline_s=2000))
        await world.clock.sleep(5)
        heir = gateway(world, tmp_path, idempotency={"unknown": unknown})
        await heir.jobs.count()
        # As a crash leaves it: the node gone, its key still `sent`.
        await heir._durable.store.bury_dead([dying._durable.node.id])
        if runs:
            assert not (await ask(heir)).replayed
            assert calls(heir) == 1
        else:
            with pytest.raises(
                StateConflict, match="refuse"
            ):  # Waiting does not help: it is no `KeyInProgress`.
                await ask(heir)
            assert calls(heir) == 0
        call.cancel()
        await heir.aclose()
        await dying.aclose()

    virtual.run(main)


def test_a_key_that_was_reserved_but_not_sent_runs_again_whatever_the_policy(tmp_path: Path) -> None:
    """`reserved` proves that nothing went out: refusing it would punish a client for our crash."""

    async def main(world: World) -> None:
        dying = gateway(world, tmp_path, latency_s=500.0, slots=1)
        busy = asyncio.create_task(dying.complete(model="m", messages=HELLO, deadline_s=1000))
        await world.clock.sleep(1)
        waiting = asyncio.create_task(ask(dying, deadline_s=1000))
        await world.clock.sleep(5)
        heir = gateway(world, tmp_path, idempotency={"unknown": "refuse"})
        await heir.jobs.count()
        await heir._durable.store.bury_dead([dying._durable.node.id])
        assert not (await ask(heir)).replayed
        for task in (busy, waiting):
            task.cancel()
        await heir.aclose()
        await dying.aclose()

    virtual.run(main)


async def _declare_dead(victim: Gateway, by: Gateway) -> None:
    """As its neighbours do when it has been silent for a lease; the process itself goes on."""
    await by.durable.store.bury_dead([victim.durable.node.id])


@pytest.mark.parametrize("other_takes_s", [1.0, 100.0])
def test_a_process_that_was_overtaken_returns_the_recorded_answer(
    tmp_path: Path, other_takes_s: float
) -> None:
    """Its own answer came, and does not count: whether the other one is recorded already, or much later."""

    async def main(world: World) -> None:
        slow, heir = (
            gateway(world, tmp_path, latency_s=20.0),
            gateway(world, tmp_path, latency_s=other_takes_s),
        )
        late = asyncio.create_task(ask(slow))
        await world.clock.sleep(5)
        await heir.jobs.count()
        await _declare_dead(slow, heir)
        recorded = await ask(heir)
        assert (recorded.replayed, (await late).replayed) == (False, True)
        assert (await late).request_id == recorded.request_id
        assert (calls(slow), calls(heir)) == (1, 1)
        for gate in (slow, heir):
            assert (await ask(gate)).request_id == recorded.request_id
            await gate.aclose()

    virtual.run(main)


def test_a_process_that_was_overtaken_before_it_sent_anything_makes_no_call(tmp_path: Path) -> None:
    """It waits in its queue meanwhile; the answer of the process that took the key over is this caller's, too."""

    async def main(world: World) -> None:
        slow = gateway(world, tmp_path, latency_s=20.0, slots=1)
        busy = asyncio.create_task(slow.complete(model="m", messages=HELLO))
        await world.clock.sleep(1)
        late = asyncio.create_task(ask(slow))
        await world.clock.sleep(1)
        heir = gateway(world, tmp_path)
        await heir.jobs.count()
        await _declare_dead(slow, heir)
        recorded = await ask(heir)
        assert (await late).request_id == recorded.request_id
        await busy
        assert (calls(slow), calls(heir)) == (1, 1)
        await slow.aclose()
        await heir.aclose()

    virtual.run(main)


def test_a_process_that_was_overtaken_gives_up_at_its_callers_deadline(tmp_path: Path) -> None:
    """Its own answer does not count, and no other is recorded yet: the caller asks again later."""

    async def main(world: World) -> None:
        slow, heir = gateway(world, tmp_path, latency_s=20.0), gateway(world, tmp_path, latency_s=100.0)
        late = asyncio.create_task(ask(slow, deadline_s=30))
        await world.clock.sleep(5)
        await heir.jobs.count()
        await _declare_dead(slow, heir)
        recorded = asyncio.create_task(ask(heir))
        with pytest.raises(KeyInProgress):
            await late
        assert (await ask(slow)).request_id == (await recorded).request_id
        assert (calls(slow), calls(heir)) == (1, 1)
        await slow.aclose()
        await heir.aclose()

    virtual.run(main)


def test_when_the_process_that_took_over_fails_the_first_answer_is_recorded(tmp_path: Path) -> None:
    """The key is free again, and an answer that was paid for is there."""

    async def main(world: World) -> None:
        slow = gateway(world, tmp_path, latency_s=20.0)
        heir = gateway(world, tmp_path, script=["transient"])
        late = asyncio.create_task(ask(slow))
        await world.clock.sleep(5)
        await heir.jobs.count()
        await _declare_dead(slow, heir)
        with pytest.raises(CallFailed):
            await ask(heir, retry=headgate.RetryPolicy(max_attempts=1))
        assert not (await late).replayed
        assert (await ask(heir)).request_id == (await late).request_id
        assert (calls(slow), calls(heir)) == (1, 1)
        await slow.aclose()
        await heir.aclose()

    virtual.run(main)


def test_after_72_hours_the_key_is_as_good_as_new(tmp_path: Path) -> None:
    """Keys are not kept for ever, and what is documented is what happens."""

    async def main(world: World) -> None:
        gate = gateway(world, tmp_path)
        await ask(gate)
        await world.clock.sleep(71.9 * 3600)
        assert (await ask(gate)).replayed
        await world.clock.sleep(0.2 * 3600)
        assert not (await ask(gate)).replayed
        await gate.aclose()

    virtual.run(main)


@pytest.mark.parametrize("key", ["", "x" * 256, "line\nbreak", 7])
def test_a_key_that_is_none_is_refused_before_anything_is_asked(tmp_path: Path, key: Any) -> None:
    """Bad input costs nothing and stores nothing."""

    async def main(world: World) -> None:
        gate = gateway(world, tmp_path)
        with pytest.raises(InvalidRequest, match="255"):
            await ask(gate, key=key)
        assert calls(gate) == 0
        await gate.aclose()

    virtual.run(main)
