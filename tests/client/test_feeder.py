"""A feeder never floods, never doubles and never gives up: bounded, resumable, calm."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
from client.stub import Fault, Seen, Stub, stubbed

from headgate.client import AsyncClient, Progress
from headgate.core.errors import InvalidRequest, QueueFull, QuotaExceeded, Unauthorized
from headgate.core.job import Job, JobState
from headgate.planner import virtual
from headgate.planner.virtual import World

Scene = Callable[[Stub, AsyncClient, World], Coroutine[Any, Any, None]]


def play(scene: Scene, *faults: Fault) -> None:
    async def main(world: World) -> None:
        async with stubbed(*faults) as stub, AsyncClient(stub.url, clock=world.clock) as client:
            await scene(stub, client, world)

    virtual.run(main)


def unfinished(stub: Stub) -> int:
    return sum(job["state"] == "pending" for job in stub.jobs)


def test_never_more_than_in_flight_are_unfinished() -> None:
    """The source is not read ahead either: it may be endless."""
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(25):
            read.append(number)
            yield number

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        most = 0

        def look(progress: Progress) -> None:
            nonlocal most
            most = max(most, unfinished(stub))
            assert len(read) <= progress.taken
            pending = [job for job in stub.jobs if job["state"] == "pending"]
            for job in pending[: len(pending) // 2 + 1]:
                stub.end(job)

        progress = await client.feed(items(), task="t", run="r", in_flight=6, on_progress=look)
        assert most == 6
        assert (progress.taken, progress.completed, progress.unfinished) == (25, 25, 0)
        assert stub.inputs == list(range(25))

    play(scene)


def test_a_place_is_filled_again_as_soon_as_its_job_has_ended() -> None:
    """It waited for the next pass: a hundred items each ten seconds, whatever the gateway could do."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        stub.ends_when_awaited = True
        passes: list[float] = []
        most = 0

        def look(progress: Progress) -> None:
            passes.append(progress.next_pass_s)
            assert len(passes) < 5, "six passes for 600 items are five waits of ten seconds"

        def count(_: Any) -> Fault:
            nonlocal most
            most = max(most, unfinished(stub))
            return Fault.NONE

        stub.otherwise = count
        progress = await client.feed(range(600), task="t", run="r", on_progress=look)
        assert (progress.completed, progress.unfinished) == (600, 0)
        assert (passes, world.clock.now()) == ([10, 0], 0)
        assert most <= 100

    play(scene)


def test_an_asynchronous_source_may_wait_for_what_becomes_of_its_items() -> None:
    """Items that are sent together are not collected from a source that gives one now and one later."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        stub.ends_at_once = True

        async def items() -> AsyncIterator[int]:
            for number in range(40):
                yield number
                assert len(stub.jobs) == number + 1

        progress = await client.feed(items(), task="t", run="r")
        assert (progress.completed, stub.inputs) == (40, list(range(40)))

    play(scene)


def test_a_second_run_submits_nothing_twice_and_hears_of_what_is_done() -> None:
    """Killed half-way, started again under the same name."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        stub.ends_at_once = True
        ended: list[tuple[str, str]] = []

        def hear(item: str, job: Job) -> None:
            ended.append((item, job.id))

        await client.feed(["a", "b"], task="t", run="monday")
        progress = await client.feed(["a", "b", "c"], task="t", run="monday", on_end=hear)
        assert stub.inputs == ["a", "b", "c"]
        assert (progress.resumed, progress.completed) == (2, 3)
        assert ended == [("a", "job-0"), ("b", "job-1"), ("c", "job-2")]
        await client.feed(["a"], task="t", run="tuesday")
        assert stub.inputs == ["a", "b", "c", "a"]

    play(scene)


def test_refusals_follow_the_series_and_nothing_is_failed() -> None:
    """429 at 0 s, 30 s, 90 s, 210 s; then the first success, and ten seconds again."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        knocks: list[float] = []
        passes: list[float] = []

        def knock(request: Any) -> Fault:
            knocks.append(world.clock.now())
            return Fault.FULL if len(knocks) <= 4 else Fault.NONE

        def look(progress: Progress) -> None:
            passes.append(progress.next_pass_s)
            if not progress.next_pass_s or progress.taken == 3:
                for job in stub.jobs:
                    stub.end(job)

        stub.otherwise = knock
        progress = await client.feed(["a", "b", "c"], task="t", run="r", on_progress=look)
        assert knocks[:4] == [0, 30, 90, 210]
        assert passes == [30, 60, 120, 240, 10, 0]
        assert (progress.refusals, progress.completed, progress.rejected) == (4, 3, 0)
        assert stub.inputs == ["a", "b", "c"]

    play(scene)


def test_after_a_refusal_one_request_is_refused_a_pass_and_none_is_sent_between_passes() -> None:
    """Full after 30 of 50 items: what ended is still heard of, before the one request that is refused."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        times: set[float] = set()
        refused: list[float] = []
        ended: list[tuple[float, int]] = []

        def knock(request: Seen) -> Fault:
            times.add(world.clock.now())
            if request.method == "GET" or len(stub.jobs) < 30 or world.clock.now() >= 750:
                return Fault.NONE
            refused.append(world.clock.now())
            return Fault.FULL

        def look(progress: Progress) -> None:
            if progress.refusals == 1:
                stub.end(stub.jobs[7])
            if progress.refusals == 5:
                stub.ends_when_awaited = True

        stub.otherwise = knock
        progress = await client.feed(
            range(50),
            task="t",
            run="r",
            on_progress=look,
            on_end=lambda item, _: ended.append((world.clock.now(), item)),
        )
        assert 1 <= refused.count(0) <= 4, "those that were in flight together"
        assert refused[refused.count(0) :] == [30, 90, 210, 450]
        assert sorted(times) == [0, 30, 90, 210, 450, 750]
        assert ended[0] == (30.0, 7)
        assert (progress.completed, progress.refusals) == (50, 5)
        assert sorted(stub.inputs) == list(range(50))

    play(scene)


def test_a_gateway_that_is_away_while_jobs_run_is_asked_once_a_pass() -> None:
    """All is submitted, and the looks fail together: that is one refusal. The first look that succeeds ends the series."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        asked: list[float] = []
        passes: list[float] = []

        def away(request: Seen) -> Fault:
            if request.method == "POST" or world.clock.now() >= 90:
                return Fault.NONE
            asked.append(world.clock.now())
            return Fault.CUT_BEFORE

        def look(progress: Progress) -> None:
            passes.append(progress.next_pass_s)
            if world.clock.now() == 100:
                stub.ends_when_awaited = True

        stub.otherwise = away
        progress = await client.feed(range(5), task="t", run="r", on_progress=look)
        assert (set(asked), asked.count(30)) == ({0, 30}, 1)
        assert passes[:4] == [10, 30, 60, 10]
        assert (progress.completed, progress.refusals) == (5, 2)

    play(scene)


def test_a_look_that_is_answered_too_late_ends_the_pass_and_not_the_feed() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        stub.ends_when_awaited = True
        progress = await client.feed(["a"], task="t", run="r")
        assert (progress.completed, progress.refusals) == (1, 1)
        assert world.clock.now() == 30

    play(scene, Fault.NONE, Fault.LATE)


def test_an_error_of_the_caller_s_own_source_ends_the_feed_whatever_it_is() -> None:
    """Taken for a refusal by the gateway, it would end the source early, and the feed would say that all is done."""

    def items() -> Iterator[str]:
        yield "a"
        raise QueueFull("another gateway's", retry_after_s=1.0)

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        with pytest.raises(QueueFull, match="another"):
            await client.feed(items(), task="t", run="r")

    play(scene)


def test_a_longer_retry_after_beats_the_series() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        stub.ends_at_once, stub.after_s = True, 45.0
        await client.feed(["a"], task="t", run="r")
        assert world.clock.now() == 45.0

    play(scene, Fault.FULL)


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.AWAY, Fault.PROXY])
def test_a_gateway_that_is_away_for_a_while_loses_and_doubles_nothing(fault: Fault) -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        stub.ends_at_once = True
        progress = await client.feed(["a", "b"], task="t", run="r")
        assert stub.inputs == ["a", "b"]
        assert (progress.taken, progress.refusals) == (2, 2)

    play(scene, fault, fault)


def test_an_item_that_is_wrong_is_told_and_left_behind() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        stub.ends_at_once = True
        rejected: list[str] = []
        progress = await client.feed(
            ["bad", "good"], task="t", run="r", on_rejected=lambda item, _: rejected.append(item)
        )
        assert rejected == ["bad"]
        assert (progress.rejected, progress.completed) == (1, 1)

    play(scene, Fault.WRONG)


def test_a_wrong_key_ends_the_feed_loudly() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        with pytest.raises(Unauthorized):
            await client.feed(["a", "b"], task="t", run="r")
        assert len(stub.seen) == 1

    play(scene, Fault.STRANGER)


def test_every_end_is_counted_by_its_kind() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        ends = [JobState.COMPLETED, JobState.SKIPPED, JobState.DEAD_LETTER, JobState.CANCELLED]

        def look(progress: Progress) -> None:
            for job, state in zip(stub.jobs, ends, strict=True):
                stub.end(job, state)

        progress = await client.feed(range(4), task="t", run="r", on_progress=look)
        assert (progress.completed, progress.skipped, progress.dead, progress.cancelled) == (1, 1, 1, 1)

    play(scene)


def test_items_with_the_same_key_are_one_job_and_each_hears_of_its_end() -> None:
    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        ended: list[str] = []

        def look(progress: Progress) -> None:
            for job in stub.jobs:
                stub.end(job)

        progress = await client.feed(
            ["a", "a"], task="t", run="r", on_progress=look, on_end=lambda item, _: ended.append(item)
        )
        assert (len(stub.jobs), ended) == (1, ["a", "a"])
        assert (progress.taken, progress.completed, progress.unfinished) == (2, 2, 0)

    play(scene)


def test_an_item_that_json_cannot_say_or_whose_model_is_not_allowed_is_rejected_alone() -> None:
    """One bad item must not end a feed of thousands, nor hold it up for ever."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        stub.ends_at_once = True
        stub.faults.append(Fault.OTHER_MODEL)
        rejected: list[Any] = []
        progress = await client.feed(
            [1, float("inf"), "\ud800", 2],
            task="t",
            run="r",
            on_rejected=lambda item, error: rejected.append((item, type(error).__name__)),
        )
        assert (progress.rejected, progress.completed, stub.inputs) == (3, 1, [2])
        assert rejected == [
            (1, "ModelNotAllowed"),
            (float("inf"), "InvalidRequest"),
            ("\ud800", "InvalidRequest"),
        ]
        keyed = await client.feed([1], task="t", run="r2", key=lambda _: "\ud800")
        assert keyed.rejected == 1

    play(scene)


def test_a_quota_that_is_used_up_ends_the_feed_and_the_next_one_goes_on() -> None:
    """Results take room until they expire: waiting for that is for the caller to decide."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        stub.ends_at_once = True
        stub.faults.extend([Fault.NONE, Fault.QUOTA])
        with pytest.raises(QuotaExceeded, match="told quota_exceeded"):
            await client.feed([1, 2, 3], task="t", run="r")
        progress = await client.feed([1, 2, 3], task="t", run="r")
        assert (progress.completed, sorted(stub.inputs)) == (3, [1, 2, 3])

    play(scene)


@pytest.mark.parametrize(
    "options", [{"every_s": 0}, {"every_s": -1}, {"every_s": float("nan")}, {"run": ""}, {"in_flight": 0}]
)
def test_a_feed_without_a_pace_a_name_or_places_is_refused(options: dict[str, Any]) -> None:
    """The first would spin; without a name all feeds would share their keys; without places none would begin."""

    async def scene(stub: Stub, client: AsyncClient, world: World) -> None:
        with pytest.raises(InvalidRequest, match=next(iter(options))):
            await client.feed([1], **{"task": "t", "run": "r", **options})
        assert stub.seen == []

    play(scene)
