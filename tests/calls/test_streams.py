"""Streams: retried until their first content, honest after it, and never in possession of a slot they left."""

import asyncio
import contextlib
import gc
from typing import Any

import pytest
from calls.closing import RUN, upstream_of
from loops import Run, World
from stage import USER, Stage, set_stage

from headgate.calls.reply_stream import ReplyStream
from headgate.core import events
from headgate.core.errors import (
    DeadlineExceeded,
    DuplicateRequest,
    InvalidRequest,
    OutputInvalid,
    QueueFull,
    RequestRejected,
    StreamCut,
    UpstreamUnavailable,
)
from headgate.planner import virtual

NO_JITTER = {"max_attempts": 3, "first_wait_s": 1.0, "jitter": "none"}
QUICK = {**NO_JITTER, "first_wait_s": 0.01}


async def _read(stage: Stage, **options: Any) -> str:
    async with stage.gateway.stream(model="m", messages=USER, **options) as stream:
        return "".join([chunk.text async for chunk in stream])


def test_a_stream_gives_the_same_text_as_a_whole_answer_and_knows_its_usage(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"chunks": 5, "chunk_gap_s": 0.01}, keep_events=True)
        whole = await stage.gateway.complete(model="m", messages=USER)
        async with stage.gateway.stream(model="m", messages=USER) as stream:
            text = "".join([chunk.text async for chunk in stream])
            assert stream.usage == whole.usage
            assert stream.upstream == "simulated"
        assert text == whole.content
        assert stage.all_free
        assert sum(isinstance(event, events.Responded) for event in stage.events) == 2

    run(main)


def test_a_stream_that_fails_before_its_first_content_is_retried(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": [503, "blank", "ok"]}, retry=QUICK)
        assert await _read(stage)
        assert stage.provider.calls == 3
        assert stage.all_free

    run(main)


def test_a_stream_that_breaks_after_its_first_content_is_cut_and_never_retried(run: Run) -> None:
    """A retry would repeat text that was already shown."""

    async def main(world: World) -> None:
        stage = set_stage(
            world, {"latency_s": 0, "chunks": 8, "script": ["cut"]}, retry=QUICK, keep_events=True
        )
        stream = stage.gateway.stream(model="m", messages=USER)
        assert [bool((await anext(stream)).text) for _ in range(3)] == [True] * 3
        with pytest.raises(StreamCut, match="broke after"):
            await anext(stream)
        assert stage.provider.calls == 1
        assert stage.all_free
        assert [event.error for event in stage.events if isinstance(event, events.Responded)] == ["transient"]

    run(main)


def test_a_stalled_stream_ends_after_idle_s() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": ["stall"]}, timeouts={"idle_s": 4})
        with pytest.raises(StreamCut, match="idle_s"):
            await _read(stage)
        assert stage.now == pytest.approx(4.0)
        assert stage.provider.in_flight == 0
        assert stage.all_free

    virtual.run(main)


def test_a_stream_without_a_first_token_goes_on_to_the_next_upstream() -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"latency_s": 500.0}, {"latency_s": 1.0, "model": "slow"}, timeouts={"first_token_s": 6}
        )
        async with stage.gateway.stream(model="m", messages=USER) as stream:
            assert stage.now == pytest.approx(7.0)
            assert stream.upstream == "simulated/slow"
            assert stage.providers[0].cancelled == 1

    virtual.run(main)


def test_the_deadline_holds_in_the_middle_of_a_stream() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 1, "chunks": 100, "chunk_gap_s": 1})
        for _ in range(6):
            started = stage.now
            with pytest.raises(DeadlineExceeded):
                await _read(stage, deadline_s=10)
            assert stage.now - started == pytest.approx(10.0)
        assert stage.all_free
        assert await _read(stage), "impatient readers do not open the breaker of a healthy upstream"

    virtual.run(main)


def test_a_refused_stream_raises_before_anything_is_sent(run: Run) -> None:
    """An earlier system sent its 200 first and looked for a slot afterwards."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "depth": 1, "latency_s": 0.3})
        waiting = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFull):
            await _read(stage)
        await asyncio.gather(*waiting)

    run(main)


@pytest.mark.parametrize("how", ["break", "cancel", "drop", "exception"])
def test_a_stream_left_half_read_frees_its_slot_and_stops_the_provider(how: str) -> None:
    """The `finally` of an abandoned generator may never run; a slot must not depend on it."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.1, "chunks": 10, "chunk_gap_s": 1.0}, keep_events=True)
        if how == "drop":
            await anext(stage.gateway.stream(model="m", messages=USER))
            gc.collect()
            await asyncio.sleep(0.1)
        elif how == "cancel":
            reading = asyncio.create_task(_read(stage))
            await asyncio.sleep(2.5)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        else:
            with contextlib.suppress(ZeroDivisionError):
                async with stage.gateway.stream(model="m", messages=USER) as stream:
                    async for chunk in stream:
                        if how == "break":
                            break
                        assert len(chunk.text) / 0
        assert stage.all_free
        assert stage.provider.in_flight == 0
        assert stage.provider.cancelled == 1
        assert sum(isinstance(event, events.Cancelled) for event in stage.events) == 1

    virtual.run(main)


def test_a_stream_that_ends_without_content_is_bad_output(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0, "script": ["blank"] * 3}, retry=QUICK)
        with pytest.raises(OutputInvalid):
            await _read(stage)

    run(main)


@pytest.mark.parametrize("outcome", ["cut", "stall"])
def test_streams_that_break_without_a_gap_close_the_upstream_until_one_is_whole(outcome: str) -> None:
    """A stream that begins proves nothing: those that broke had begun, too."""

    async def main(world: World) -> None:
        upstream = {"latency_s": 0.01, "chunks": 20, "chunk_gap_s": 0.5, "script": [outcome] * RUN}
        stage = set_stage(world, upstream, timeouts={"idle_s": 2})
        for _ in range(RUN):
            assert not upstream_of(stage).closed
            with pytest.raises(StreamCut):
                await _read(stage)
        assert upstream_of(stage).closed
        with pytest.raises(UpstreamUnavailable):
            await _read(stage, deadline_s=0.1)
        assert stage.provider.calls == RUN
        probe = asyncio.create_task(_read(stage))
        await asyncio.sleep(1)
        others = [asyncio.create_task(_read(stage)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert stage.provider.calls == RUN + 1, "the others broke only after a while"
        assert all(await asyncio.gather(probe, *others))
        assert not upstream_of(stage).closed
        assert stage.all_free

    virtual.run(main)


def test_a_reader_that_leaves_the_probe_says_nothing_of_the_upstream() -> None:
    async def main(world: World) -> None:
        upstream = {"latency_s": 0.01, "chunks": 20, "chunk_gap_s": 0.5, "script": ["cut"] * RUN}
        stage = set_stage(world, upstream)
        for _ in range(RUN):
            with pytest.raises(StreamCut):
                await _read(stage)
        probe = asyncio.create_task(_read(stage))
        await asyncio.sleep(0.7)
        other = asyncio.create_task(_read(stage))
        await asyncio.sleep(0.1)
        assert stage.provider.calls == RUN + 1
        probe.cancel()
        await asyncio.sleep(0.1)
        assert upstream_of(stage).closed
        assert stage.provider.calls == RUN + 2, "the next is the probe"
        assert await other
        assert not upstream_of(stage).closed

    virtual.run(main)


def test_two_streams_may_not_share_a_request_id(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {})
        async with stage.gateway.stream(model="m", messages=USER, request_id="one"):
            with pytest.raises(DuplicateRequest):
                await _read(stage, request_id="one")
        assert await _read(stage, request_id="one")

    run(main)


def test_a_started_stream_is_never_preempted(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"slots": 1, "latency_s": 0.01, "chunks": 10, "chunk_gap_s": 0.03, "preempt": True}
        )
        reading = asyncio.create_task(_read(stage, lane="batch"))
        await asyncio.sleep(0.1)
        await stage.gateway.complete(model="m", messages=USER)
        assert reading.done()
        assert await reading

    run(main)


def test_the_deadline_frees_the_slot_also_while_nobody_reads() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.1, "chunks": 5, "chunk_gap_s": 0.1}, keep_events=True)
        stream = stage.gateway.stream(model="m", messages=USER, deadline_s=10)
        await anext(stream)
        await asyncio.sleep(11)
        assert stage.all_free
        assert stage.provider.in_flight == 0
        with pytest.raises(DeadlineExceeded):
            await anext(stream)
        ends = [event for event in stage.events if isinstance(event, events.Responded | events.Cancelled)]
        assert [getattr(event, "error", None) for event in ends] == ["deadline_exceeded"]

    virtual.run(main)


def test_closing_a_stream_while_it_opens_leaks_no_slot(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.5})
        stream = stage.gateway.stream(model="m", messages=USER)
        opening = asyncio.create_task(stream.__aenter__())
        await asyncio.sleep(0.1)
        await stream.aclose()
        with pytest.raises(InvalidRequest):
            await opening
        assert stage.all_free

    run(main)


def test_a_stream_has_one_reader() -> None:
    """A second one once got a clean end after two of nine chunks."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"latency_s": 0.1, "chunks": 5, "chunk_gap_s": 1.0})
        stream = stage.gateway.stream(model="m", messages=USER)
        first = asyncio.create_task(_texts(stream))
        await asyncio.sleep(1.5)
        with pytest.raises(InvalidRequest, match="one reader"):
            await anext(stream)
        with pytest.raises(InvalidRequest, match="being read"):
            await stream.aclose()
        assert len([text for text in await first if text]) == 5
        assert stage.all_free

    virtual.run(main)


async def _texts(stream: ReplyStream) -> list[str]:
    return [chunk.text async for chunk in stream]


def test_a_stream_that_never_took_off_frees_nobody_else_s_id(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {})
        async with stage.gateway.stream(model="m", messages=USER, request_id="one"):
            other = stage.gateway.stream(model="m", messages=USER, request_id="one")
            with pytest.raises(DuplicateRequest):
                await anext(other)
            await other.aclose()
            with pytest.raises(DuplicateRequest):
                await _read(stage, request_id="one")

    run(main)


def test_a_stream_s_attempt_is_told_with_its_own_number_and_time() -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"latency_s": 0.1, "script": [503, "ok"], "chunks": 1}, retry=NO_JITTER, keep_events=True
        )
        await _read(stage)
        told = [
            (event.attempt, event.duration_ms)
            for event in stage.events
            if isinstance(event, events.AttemptEnded)
        ]
        assert [number for number, _ in told] == [1, 2]
        assert [duration_ms for _, duration_ms in told] == pytest.approx([100, 100])

    virtual.run(main)


def test_a_stream_that_is_over_cannot_be_entered_again(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"script": [400]}, keep_events=True)
        closed = stage.gateway.stream(model="m", messages=USER, request_id="x")
        await closed.aclose()
        failed = stage.gateway.stream(model="m", messages=USER, request_id="y")
        with pytest.raises(RequestRejected):
            await anext(failed)
        for stream in (closed, failed):
            with pytest.raises(InvalidRequest, match="over"):
                await stream.__aenter__()
        assert stage.provider.calls == 1
        assert sum(isinstance(event, events.Responded) for event in stage.events) == 1
        assert await _read(stage, request_id="x")

    run(main)
