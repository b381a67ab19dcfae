"""Who tries again, when, and under which key: one owner, one key, one deadline."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from client.stub import Fault, Stub, stubbed

from headgate.client import AsyncClient, GatewayUnreachable
from headgate.core.errors import DeadlineExceeded, HeadgateError, InvalidRequest, KeyInProgress, QueueFull
from headgate.core.retry import RetryPolicy
from headgate.planner import virtual
from headgate.planner.virtual import World

Scene = Callable[[Stub, AsyncClient, World], Coroutine[Any, Any, None]]


def play(scene: Scene, *faults: Fault, **options: Any) -> None:
    """In virtual time, against a stub with these faults."""

    async def main(world: World) -> None:
        async with stubbed(*faults) as stub, AsyncClient(stub.url, clock=world.clock, **options) as client:
            await scene(stub, client, world)

    virtual.run(main)


async def raised(call: Coroutine[Any, Any, Any]) -> HeadgateError:
    with pytest.raises(HeadgateError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize(
    "fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.FULL, Fault.AWAY, Fault.IN_PROGRESS, Fault.PROXY]
)
def test_a_try_that_may_fare_better_is_repeated_with_the_same_key_and_bytes(fault: Fault) -> None:
    """The client of old made a new key for each try, so that no retry was ever recognised."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        job = await client.submit("summarise", {"text": "a"})
        assert job.id == "job-0"
        assert len(stub.jobs) == 1
        assert len(stub.seen) == 3
        assert len({(request.key, request.body) for request in stub.seen}) == 1

    play(scene, fault, fault)


def test_two_actions_have_two_keys() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        await client.submit("summarise", "same")
        await client.submit("summarise", "same")
        assert len({request.key for request in stub.seen}) == 2

    play(scene)


def test_a_key_that_no_header_can_carry_is_refused_before_anything_is_sent() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        for key in ("", "é", "a\nb", "x" * 300):
            assert isinstance(await raised(client.submit("t", idempotency_key=key)), InvalidRequest)
        assert stub.seen == []

    play(scene)


def test_a_chat_has_a_key_too() -> None:
    """Its connection may be cut after the provider was paid."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        await client.chat("Hi", model="m")
        assert len({request.key for request in stub.seen} - {None}) == 1

    play(scene, Fault.CUT_AFTER)


def test_what_the_gateway_asks_for_is_a_floor() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        await client.submit("summarise")
        assert world.clock.now() == 7.0

    play(scene, Fault.FULL)


def test_without_a_word_the_waits_are_those_of_the_policy() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        await client.submit("summarise")
        assert world.clock.now() == pytest.approx(1.0 + 2.0)

    play(scene, Fault.CUT_BEFORE, Fault.CUT_BEFORE, chance=lambda: 0.0)


@pytest.mark.parametrize(("fault", "kind"), [(Fault.WRONG, InvalidRequest), (Fault.BROKEN, HeadgateError)])
def test_a_final_answer_is_never_repeated(fault: Fault, kind: type[HeadgateError]) -> None:
    """`x-should-retry: false`: the gateway has tried as often as it helps."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        error = await raised(client.submit("summarise"))
        assert type(error) is kind
        assert len(stub.seen) == 1

    play(scene, fault)


def test_three_tries_and_the_last_error_is_told() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        error = await raised(client.submit("summarise"))
        assert isinstance(error, QueueFull)
        assert (error.retry_after_s, str(error), len(stub.seen)) == (7.0, "told queue_full", 3)

    play(scene, *[Fault.FULL] * 5)


def test_no_wait_goes_past_the_deadline() -> None:
    """7 s are asked for and 5 are left: it fails now, not in 5 s."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        assert isinstance(await raised(client.submit("summarise")), QueueFull)
        assert (world.clock.now(), len(stub.seen)) == (0.0, 1)

    play(scene, Fault.FULL, timeout_s=5.0)


def test_every_try_says_what_is_left_of_the_one_deadline() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        assert isinstance(await raised(client.submit("summarise")), KeyInProgress)
        assert [request.headers["x-headgate-timeout"] for request in stub.seen] == [
            "30.000",
            "23.000",
            "16.000",
        ]

    play(scene, *[Fault.IN_PROGRESS] * 5, timeout_s=30.0)


def test_a_gateway_that_says_nothing_is_left_at_the_deadline() -> None:
    async def main() -> None:
        async with stubbed(Fault.SILENT) as stub, AsyncClient(stub.url, timeout_s=0.2) as client:
            assert isinstance(await raised(client.submit("summarise")), DeadlineExceeded)
            assert len(stub.seen) == 1

    asyncio.run(main())


def test_nobody_there_is_told_with_the_address_and_that_nothing_was_sent() -> None:
    async def main(world: World) -> None:
        async with stubbed() as stub:
            url = stub.url
        async with AsyncClient(url, clock=world.clock, chance=lambda: 0.0) as client:
            error = await raised(client.submit("summarise"))
            assert isinstance(error, GatewayUnreachable)
            assert not error.sent
            assert url in str(error)
            assert world.clock.now() == pytest.approx(3.0)

    virtual.run(main)


def test_a_proxy_s_page_is_no_gateway_s_word() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        error = await raised(client.submit("summarise"))
        assert isinstance(error, GatewayUnreachable)
        assert error.sent
        assert "502" in str(error)

    play(scene, *[Fault.PROXY] * 3)


def test_a_caller_may_own_the_retries() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        assert isinstance(await raised(client.submit("summarise")), QueueFull)
        assert len(stub.seen) == 1

    play(scene, Fault.FULL, retry=RetryPolicy(max_attempts=1))
