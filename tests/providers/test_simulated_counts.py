"""What the simulated provider counts: tests of everything above it rest on these numbers."""

import asyncio
import math
from typing import Any

import pytest
from providers.simulated_stage import (
    FakeClock,
    ask,
    ask_stream,
    cancel,
    failure_from,
    let_others_run,
    provider_with,
    read,
    send,
    story,
)

from headgate.core.call import Call


def test_calls_of_every_sort_are_counted_once() -> None:
    provider = provider_with(many_inputs=4)

    send(provider, ask(id="a"))
    asyncio.run(read(provider, ask_stream(id="b")))
    asyncio.run(provider.send_many([ask(id="a"), ask(id="c")]))

    assert provider.calls == 3
    assert provider.requests_seen == {"a": 2, "b": 1, "c": 1}
    assert provider.requests_seen["never sent"] == 0
    assert provider.in_flight == 0
    assert provider.cancelled == 0


@pytest.mark.parametrize("entry", [503, "broken", "cut"])
def test_a_failed_call_is_counted_and_leaves(entry: Any) -> None:
    provider = provider_with(script=[entry])

    with pytest.raises(Exception, match="simulated"):
        send(provider)

    assert (provider.calls, provider.in_flight, provider.cancelled) == (1, 0, 0)


def test_calls_that_fail_to_connect_are_counted_too() -> None:
    provider = provider_with(connect_latency_s=9, connect_timeout_s=1)

    failure_from(provider)

    assert (provider.calls, provider.in_flight) == (1, 0)


def test_the_most_calls_in_flight_are_remembered() -> None:
    provider = provider_with()

    async def three_then_one() -> None:
        calls = [asyncio.create_task(provider.send(ask(id=str(number)))) for number in range(3)]
        await asyncio.sleep(0)
        assert provider.in_flight == 3
        await asyncio.gather(*calls)
        await provider.send(ask(id="last"))

    asyncio.run(three_then_one())

    assert provider.in_flight == 0
    assert provider.most_in_flight == 3


def test_a_cancelled_call_is_counted_leaves_and_stays_cancelled() -> None:
    provider = provider_with(outcome="stall", many_inputs=2)

    async def cancel_each_sort() -> None:
        await cancel(asyncio.create_task(provider.send(ask(id="a"))))
        assert (provider.cancelled, provider.in_flight) == (1, 0)
        await cancel(asyncio.create_task(read(provider, ask_stream(id="b"))))
        assert (provider.cancelled, provider.in_flight) == (2, 0)
        await cancel(asyncio.create_task(_many(provider)))

    async def _many(provider: Any) -> None:
        await provider.send_many([ask(id="c"), ask(id="d")])

    asyncio.run(cancel_each_sort())

    assert (provider.calls, provider.cancelled, provider.in_flight) == (3, 3, 0)


def test_a_call_can_be_cancelled_while_it_waits_for_the_answer() -> None:
    class Standstill(FakeClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.Event().wait()

    provider = provider_with(clock=Standstill())

    async def main() -> None:
        await cancel(asyncio.create_task(provider.send(ask())))

    asyncio.run(main())

    assert (provider.cancelled, provider.in_flight) == (1, 0)


def test_without_a_connect_timeout_an_unreachable_provider_hangs_until_cancelled() -> None:
    """On no timer: a virtual clock would run ahead to the end of time."""
    clock = FakeClock()
    provider = provider_with(clock=clock, connect_latency_s=math.inf)

    async def main() -> None:
        await cancel(asyncio.create_task(provider.send(ask())))

    asyncio.run(main())

    assert provider.cancelled == 1
    assert clock.sleeps == []


def test_a_stream_closed_early_counts_as_cancelled() -> None:
    provider = provider_with()

    async def read_two_pieces() -> None:
        stream = provider.stream(ask())
        await anext(stream)
        await anext(stream)
        assert provider.in_flight == 1
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(read_two_pieces())

    assert (provider.calls, provider.cancelled, provider.in_flight) == (1, 1, 0)


def test_an_abandoned_stream_counts_as_cancelled() -> None:
    """Nobody closed it; the event loop does when the last reference is gone."""
    provider = provider_with()

    async def forget_it() -> None:
        stream = provider.stream(ask())
        await anext(stream)
        del stream
        await let_others_run()

    asyncio.run(forget_it())

    assert (provider.cancelled, provider.in_flight) == (1, 0)


@pytest.mark.parametrize("end", [b'"finish_reason":"stop"', b"[DONE]"])
@pytest.mark.parametrize("call", [ask(), ask_stream()])
def test_a_stream_left_at_its_end_is_finished(call: Call, end: bytes) -> None:
    """Readers often stop there; they have the whole answer."""
    provider = provider_with()

    async def stop_at_the_end() -> None:
        stream = provider.stream(call)
        async for piece in stream:
            if end in piece:
                break
        else:
            pytest.fail("the end never came")
        assert provider.in_flight == 0
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(stop_at_the_end())

    assert (provider.cancelled, provider.in_flight) == (0, 0)


def test_a_stream_nobody_reads_never_reached_the_provider() -> None:
    provider = provider_with()

    provider.stream(ask())

    assert provider.calls == 0


def test_starts_hold_the_time_of_each_call() -> None:
    provider = provider_with(latency_s=2)

    story(provider, 3)

    assert list(provider.starts) == [100, 102, 104]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated model may serve for months."""
    monkeypatch.setattr("headgate.providers.simulated.counts.MOST_REQUESTS", 100)
    provider = provider_with()

    story(provider, 1000)

    assert len(provider.requests_seen) <= 100
    assert provider.requests_seen["r999"] == 1
    assert provider.starts.maxlen == 100_000
