"""A run in virtual time: still while the outside works, loud when nothing can go on, tidy at its end."""

import asyncio
import gc
import math
import socket
import threading
from collections.abc import AsyncIterator
from typing import NoReturn

import pytest

from headgate.planner import virtual
from headgate.planner.virtual import VirtualDeadlock, VirtualLoop, World


def test_time_stands_still_while_a_thread_works() -> None:
    """The disk is not part of the rehearsal: however slow it is, it costs no virtual time."""

    async def main(world: World) -> tuple[float, float, list[float]]:
        rung: list[float] = []
        world.loop.call_at(1.0, lambda: rung.append(world.loop.time()))
        started, finish = threading.Event(), threading.Event()
        work = asyncio.create_task(asyncio.to_thread(_work, started, finish))
        await asyncio.to_thread(started.wait)
        before, early = world.clock.now(), list(rung)
        finish.set()
        await work
        assert (early, rung) == ([], [])
        after = world.clock.now()
        await world.clock.sleep(2)
        return before, after, rung

    assert virtual.run(main) == (0.0, 0.0, [1.0])


def _work(started: threading.Event, finish: threading.Event) -> None:
    started.set()
    finish.wait()


def test_time_stands_still_while_the_network_answers() -> None:
    async def main(world: World) -> tuple[bytes, float]:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            thread = threading.Thread(target=_echo, args=(there,))
            thread.start()
            asleep = asyncio.create_task(world.clock.sleep(60))
            with world.clock.outside():
                await world.loop.sock_sendall(here, b"ping")
                echo = await world.loop.sock_recv(here, 4)
                now = world.clock.now()
            thread.join()
            await asleep
        return echo, now

    assert virtual.run(main) == (b"ping", 0.0)


def _echo(there: socket.socket) -> None:
    there.sendall(there.recv(4))


def test_time_goes_on_once_all_outside_work_is_done_or_has_failed() -> None:
    async def main(world: World) -> float:
        with world.clock.outside(), world.clock.outside():
            await world.clock.sleep(0)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        await world.clock.sleep(4)
        return world.clock.now()

    assert virtual.run(main) == 4.0


def test_a_cancelled_wait_for_a_thread_lets_time_go_on() -> None:
    async def main(world: World) -> float:
        started, finish = threading.Event(), threading.Event()
        work = asyncio.create_task(asyncio.to_thread(_work, started, finish))
        await asyncio.to_thread(started.wait)
        work.cancel()
        await world.clock.sleep(3)
        finish.set()
        return world.clock.now()

    assert virtual.run(main) == 3.0


# Deadlock


def test_a_deadlock_is_an_error_that_names_who_waits() -> None:
    """On a real clock a test would hang here until somebody kills it."""

    async def main(world: World) -> None:
        await world.clock.sleep(2.5)
        await asyncio.create_task(_wait_for_nothing(), name="the gatekeeper")

    with pytest.raises(VirtualDeadlock) as caught:
        virtual.run(main)

    assert str(caught.value).startswith("at t=2.5: every task waits and nothing can wake them: ")
    assert "the gatekeeper (_wait_for_nothing)" in str(caught.value)


async def _wait_for_nothing() -> None:
    await asyncio.Event().wait()


def test_a_deadlock_of_thousands_stays_readable() -> None:
    async def main(world: World) -> None:
        await asyncio.gather(*(_wait_for_nothing() for _ in range(5000)))

    with pytest.raises(VirtualDeadlock, match=r" and 4991 more$") as caught:
        virtual.run(main)

    assert len(str(caught.value)) < 1500


def test_a_timer_at_infinity_wakes_nobody() -> None:
    async def main(world: World) -> None:
        async with asyncio.timeout(math.inf):
            await _wait_for_nothing()

    with pytest.raises(VirtualDeadlock, match=r"^at t=0\.0: "):
        virtual.run(main)


def test_a_timer_at_not_a_number_is_refused() -> None:
    """It would sit in the heap, compare with nothing and make all later order chance."""

    async def main(world: World) -> None:
        await world.clock.sleep(math.nan)

    with pytest.raises(ValueError, match="NaN"):
        virtual.run(main)


def test_a_task_that_will_not_be_cancelled_is_a_deadlock_too() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def main(world: World) -> None:
        world.loop.create_task(stubborn(), name="stubborn")
        await world.clock.sleep(1)

    with pytest.raises(VirtualDeadlock, match="stubborn"):
        virtual.run(main)


# Runs


def test_errors_come_out_as_they_are() -> None:
    async def main(world: World) -> NoReturn:
        await world.clock.sleep(1)
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        virtual.run(main)


def test_a_cancelled_task_stops_where_it_slept() -> None:
    async def main(world: World) -> float:
        sleeper = asyncio.create_task(world.clock.sleep(1000))
        await world.clock.sleep(3)
        sleeper.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeper
        return world.clock.now()

    assert virtual.run(main) == 3.0


def test_what_is_left_running_is_cancelled_and_may_tidy_up_in_virtual_time() -> None:
    tidied: list[float] = []

    async def leftover(world: World) -> None:
        try:
            await world.clock.sleep(1000)
        finally:
            await world.clock.sleep(5)
            tidied.append(world.clock.now())

    async def main(world: World) -> None:
        world.loop.create_task(leftover(world))
        await world.clock.sleep(1)

    virtual.run(main)
    assert tidied == [6.0]


def test_nothing_stays_open(recwarn: pytest.WarningsRecorder) -> None:
    """Sockets, threads, generators and the thread's current event loop are as they were before."""
    threads = threading.active_count()

    async def ticks(world: World) -> AsyncIterator[int]:
        while True:
            yield await world.loop.run_in_executor(None, int)

    async def main(world: World) -> VirtualLoop:
        generator = ticks(world)
        await anext(generator)
        return world.loop

    loop = virtual.run(main)
    closed = loop.is_closed()
    del loop
    gc.collect()

    assert closed
    assert threading.active_count() == threads
    assert not recwarn.list


def test_the_threads_own_event_loop_is_left_alone() -> None:
    mine = asyncio.new_event_loop()
    asyncio.set_event_loop(mine)
    try:
        virtual.run(lambda world: world.clock.sleep(1))
        assert asyncio.get_event_loop_policy().get_event_loop() is mine
    finally:
        asyncio.set_event_loop(None)
        mine.close()


def test_a_run_within_a_run_is_refused() -> None:
    async def main(world: World) -> None:
        virtual.run(lambda inner: inner.clock.sleep(1))

    with pytest.raises(RuntimeError, match="running event loop"):
        virtual.run(main)


def test_debug_mode_changes_nothing_but_finds_timers_set_from_another_thread() -> None:
    async def main(world: World) -> float:
        world.loop.set_debug(True)
        await world.clock.sleep(86_400)
        with pytest.raises(RuntimeError, match="Non-thread-safe"):
            await asyncio.to_thread(lambda: world.loop.call_later(1, int))
        return world.clock.now()

    assert virtual.run(main) == 86_400.0
