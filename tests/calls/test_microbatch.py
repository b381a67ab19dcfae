"""Micro-batches: gathered in one call, answered one by one, nothing left behind."""

import asyncio
from typing import Any

import pytest
from loops import Run, World
from stage import Stage, set_stage

from headgate.core import events
from headgate.core.answer import Reply
from headgate.core.errors import (
    DeadlineExceeded,
    Draining,
    DuplicateRequest,
    HeadgateError,
    RequestRejected,
    UpstreamUnavailable,
)
from headgate.core.retry import RetryPolicy
from headgate.planner import virtual

NO_JITTER = {"max_attempts": 3, "first_wait_s": 1.0, "jitter": "none"}
QUICK = {**NO_JITTER, "first_wait_s": 0.01}


def _ask(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _asked(count: int) -> list[dict[str, Any]]:
    return [_ask(f"question {index}.") for index in range(count)]


def _all_answered_by_their_own(results: list[Reply | HeadgateError]) -> bool:
    return all(
        isinstance(result, Reply) and f"question {index}." in (result.content or "")
        for index, result in enumerate(results)
    )


def _nothing_left(stage: Stage) -> bool:
    return (
        stage.all_free
        and not stage.gateway.router.pending
        and not stage.gateway.requests.gatherers._by_key
        and not stage.gateway.requests._in_flight
    )


def test_many_requests_travel_in_few_calls_and_come_back_in_order(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"many_inputs": 16, "latency_s": 0.05}, gather={"size": 10, "wait_ms": 100})
        results = await stage.gateway.complete_many(_asked(95), model="m")
        assert _all_answered_by_their_own(results)
        assert stage.provider.calls == 10
        assert _nothing_left(stage)

    run(main)


def test_a_provider_that_takes_one_input_gets_parallel_calls_through_the_gate() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 4, "depth": 2, "latency_s": 1.0})
        results = await stage.gateway.complete_many(_asked(40), model="m")
        assert _all_answered_by_their_own(results)
        assert stage.provider.calls == 40
        assert stage.provider.most_in_flight == 4
        assert stage.now == pytest.approx(10.0, abs=0.5), (
            "no slot idles and none of them refuses its own items"
        )
        assert _nothing_left(stage)

    virtual.run(main)


def test_single_calls_are_gathered_where_the_model_says_so() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"many_inputs": 8, "latency_s": 1.0}, gather={"size": 8, "wait_ms": 250})
        calls = [stage.gateway.complete(model="m", **_ask(f"question {index}.")) for index in range(3)]
        results = await asyncio.gather(*calls)
        assert _all_answered_by_their_own(list(results))
        assert stage.provider.calls == 1
        assert stage.now == pytest.approx(1.25), "a batch that is not full leaves after wait_ms"
        assert _nothing_left(stage)

    virtual.run(main)


def test_one_bad_item_does_not_fail_its_neighbours(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"many_inputs": 10, "latency_s": 0.1, "script": ["ok", "ok", 400, "ok", 503], "depth": 0},
            gather={"size": 10, "wait_ms": 10},
            retry=QUICK,
            keep_events=True,
        )
        results = await stage.gateway.complete_many(_asked(5), model="m")
        failed = [result for result in results if isinstance(result, HeadgateError)]
        assert len(failed) == 1
        assert isinstance(failed[0], RequestRejected)
        assert stage.provider.calls == 2, "one gathered call, and the failed item once more alone"
        retries = [event for event in stage.events if isinstance(event, events.RetryScheduled)]
        assert [len(event.request_ids) for event in retries] == [1]
        assert _nothing_left(stage)

    run(main)


def test_a_whole_call_that_fails_is_retried_as_a_whole() -> None:
    """Ten items retried one by one would be ten calls for one failure."""

    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"many_inputs": 10, "latency_s": 0.1, "outage": [[0, 0.5]]},
            gather={"size": 10, "wait_ms": 10},
            retry=NO_JITTER,
        )
        results = await stage.gateway.complete_many(_asked(10), model="m")
        assert _all_answered_by_their_own(results)
        assert stage.provider.calls == 2

    virtual.run(main)


def test_a_call_that_stays_broken_fails_each_of_its_items() -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"many_inputs": 10, "latency_s": 0.1, "outage": [[0, 1000]], "breaker": False},
            gather={"size": 10, "wait_ms": 10},
            retry=NO_JITTER,
            keep_events=True,
        )
        results = await stage.gateway.complete_many(_asked(10), model="m")
        assert all(isinstance(result, UpstreamUnavailable) for result in results)
        assert stage.provider.calls == 3
        assert sum(isinstance(event, events.Responded) for event in stage.events) == 10
        assert _nothing_left(stage)

    virtual.run(main)


def test_the_check_applies_to_each_item(run: Run) -> None:
    async def main(world: World) -> None:
        answers = {"a": "yes", "b": "perhaps", "c": "no"}
        stage = set_stage(world, {"many_inputs": 10, "latency_s": 0.01, "answers": answers}, retry=QUICK)
        results = await stage.gateway.complete_many(
            [_ask("a"), _ask("b"), _ask("c")], model="m", check=lambda answer: answer.content in {"yes", "no"}
        )
        assert [isinstance(result, Reply) for result in results] == [True, False, True]
        assert stage.provider.calls == 3
        assert _nothing_left(stage)

    run(main)


def test_a_duplicate_id_in_flight_is_rejected_and_the_first_is_unharmed(run: Run) -> None:
    async def main(world: World) -> None:
        for many_inputs in (1, 8):
            stage = set_stage(world, {"many_inputs": many_inputs, "latency_s": 0.05})
            asked = [{**_ask(f"question {index}."), "request_id": "same"} for index in range(2)]
            results = await stage.gateway.complete_many(asked, model="m")
            assert isinstance(results[0], Reply)
            assert isinstance(results[1], DuplicateRequest)
            assert _nothing_left(stage)

    run(main)


@pytest.mark.parametrize("when", [0.0, 0.005, 0.05, 0.2])
def test_cancelled_askers_take_their_requests_along_and_leave_nothing(run: Run, when: float) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world, {"many_inputs": 10, "latency_s": 0.5}, gather={"size": 10, "wait_ms": 10}, keep_events=True
        )
        calls = [
            asyncio.create_task(stage.gateway.complete(model="m", **_ask(f"question {index}.")))
            for index in range(6)
        ]
        await asyncio.sleep(when)
        for call in calls[:3]:
            call.cancel()
        rest = await asyncio.gather(*calls[3:])
        assert all(f"question {index + 3}." in str(reply.content) for index, reply in enumerate(rest))
        await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(event, events.Cancelled) for event in stage.events) == 3
        assert _nothing_left(stage)

    run(main)


def test_when_the_last_asker_leaves_the_call_is_cancelled_at_the_provider(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"many_inputs": 10, "latency_s": 60.0}, gather={"size": 10, "wait_ms": 10})
        calls = [
            asyncio.create_task(stage.gateway.complete(model="m", **_ask(f"question {index}.")))
            for index in range(3)
        ]
        await asyncio.sleep(0.2)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert stage.provider.cancelled == 1
        assert _nothing_left(stage)

    run(main)


def test_each_asker_keeps_its_own_deadline() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"many_inputs": 10, "latency_s": 5.0}, gather={"size": 10, "wait_ms": 10})
        hurried = asyncio.create_task(stage.gateway.complete(model="m", **_ask("question 0."), deadline_s=2))
        patient = asyncio.create_task(stage.gateway.complete(model="m", **_ask("question 1.")))
        with pytest.raises(DeadlineExceeded):
            await hurried
        assert stage.now == pytest.approx(2.0)
        assert "question 1." in str((await patient).content)

    virtual.run(main)


def test_closing_the_gateway_tells_those_who_still_ask(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"many_inputs": 10, "latency_s": 60.0}, gather={"size": 10, "wait_ms": 10})
        call = asyncio.create_task(stage.gateway.complete(model="m", **_ask("question 0.")))
        await asyncio.sleep(0.1)
        await stage.gateway.aclose()
        with pytest.raises(Draining):
            await call

    run(main)


def test_what_is_not_a_request_gets_its_error_in_its_place_and_its_neighbours_are_served(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {})
        nonsense: list[Any] = [
            "text",
            7,
            {"messages": []},
            {"messages": "text"},
            {**_ask("x"), "deadline_s": 1},
        ]
        results = await stage.gateway.complete_many([_ask("fine"), *nonsense, _ask("fine too")], model="m")
        kinds = [type(result).__name__ for result in results]
        assert kinds == ["Reply", *["InvalidRequest"] * 5, "Reply"]
        assert stage.provider.calls == 2
        assert await stage.gateway.complete_many([], model="m") == []

    run(main)


def _broken_check(answer: Any) -> object:
    return answer.nope


async def _async_check(answer: Any) -> bool:
    return False


@pytest.mark.parametrize("check", [_broken_check, _async_check])
@pytest.mark.parametrize("many_inputs", [1, 8])
def test_a_check_that_breaks_fails_its_own_item_at_once_and_blames_nobody(
    run: Run, check: Any, many_inputs: int
) -> None:
    """It once hung its neighbours until their deadline, or opened the breaker of a healthy upstream."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"many_inputs": many_inputs, "latency_s": 0.05}, keep_events=True)
        results = await stage.gateway.complete_many(
            [_ask(f"question {index}.") for index in range(3)], model="m", check=check
        )
        assert [type(result).__name__ for result in results] == ["CheckBroken"] * 3
        assert stage.provider.calls == (3 if many_inputs == 1 else 1), "and nothing is tried again"
        assert not any(isinstance(event, events.BreakerChanged) for event in stage.events)
        assert _nothing_left(stage)

    run(main)


@pytest.mark.parametrize("status", [401, 503])
def test_items_that_all_fail_alike_are_one_failed_call_and_go_on_to_the_next_upstream(
    run: Run, status: int
) -> None:
    async def main(world: World) -> None:
        failing = {"many_inputs": 8, "latency_s": 0.1, "script": [status] * 100}
        stage = set_stage(world, failing, {"many_inputs": 8, "latency_s": 0.1, "model": "many"}, retry=QUICK)
        results = await stage.gateway.complete_many(_asked(6), model="m")
        assert _all_answered_by_their_own(results)
        assert stage.providers[0].calls == (1 if status == 401 else 3)
        assert stage.providers[1].calls == 1

    run(main)


def test_attempts_are_counted_over_all_that_happened_to_an_item(run: Run) -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"many_inputs": 8, "latency_s": 0.1, "script": ["ok", 503, 503, 503], "breaker": False},
            retry=QUICK,
            keep_events=True,
        )
        results = await stage.gateway.complete_many(_asked(2), model="m")
        failed = next(result for result in results if isinstance(result, UpstreamUnavailable))
        assert failed.attempts == 3
        retries = [event.attempt for event in stage.events if isinstance(event, events.RetryScheduled)]
        assert retries == [1, 2]

    run(main)


def test_a_request_that_insists_never_goes_back_to_an_upstream_that_failed_it() -> None:
    """Waiting for room at the second upstream once meant asking the first one again and again."""

    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"latency_s": 0.1, "script": [503] * 999, "breaker": False},
            {"latency_s": 30.0, "slots": 1, "depth": 1, "model": "slow"},
            retry=NO_JITTER,
        )
        busy = [asyncio.create_task(stage.gateway.complete(model="m", **_ask("x"))) for _ in range(2)]
        await asyncio.sleep(5)
        before = stage.provider.calls
        results = await stage.gateway.complete_many([_ask("question 0.")], model="m")
        assert _all_answered_by_their_own(results)
        assert stage.provider.calls - before == 3
        await asyncio.gather(*busy, return_exceptions=True)

    virtual.run(main)


def test_an_asker_that_leaves_at_the_moment_of_its_item_s_retry_leaves_the_payment_behind() -> None:
    """The retry is not sent, so it costs nothing."""

    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"many_inputs": 2, "latency_s": 0.1, "script": ["ok", 503]},
            gather={"size": 2, "wait_ms": 50},
            retry=NO_JITTER,
        )
        budget = stage.gateway.routes.find("m").upstreams[0].budget
        budget.left = 10
        asking = [asyncio.create_task(stage.gateway.complete(model="m", **_ask("a"))) for _ in range(2)]

        def leave(event: events.Event) -> None:
            if isinstance(event, events.RetryScheduled):
                for task in asking:
                    task.cancel()

        stage.gateway.listen(leave)
        await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.sleep(5)
        assert stage.provider.calls == 1
        assert budget.left == 10 + budget.share
        assert _nothing_left(stage)

    virtual.run(main)


def test_one_asker_s_retry_policy_is_not_another_s() -> None:
    async def main(world: World) -> None:
        stage = set_stage(
            world,
            {"many_inputs": 8, "latency_s": 0.1, "outage": [[0, 99]], "breaker": False},
            gather={"size": 8, "wait_ms": 50},
        )
        once = RetryPolicy(max_attempts=1)
        calls = [
            stage.gateway.complete(model="m", **_ask("a"), retry=policy)
            for policy in (RetryPolicy(max_attempts=5), once)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [getattr(result, "attempts", None) for result in results] == [5, 1]

    virtual.run(main)


def test_a_caller_in_a_hurry_takes_its_batch_along_early() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"many_inputs": 8, "latency_s": 0.1}, gather={"size": 8, "wait_ms": 3000})
        await stage.gateway.complete(model="m", **_ask("a"), deadline_s=1)
        assert stage.now == pytest.approx(0.6)

    virtual.run(main)


def test_a_cancelled_asker_is_told_once() -> None:
    async def main(world: virtual.World) -> None:
        stage = set_stage(
            world, {"many_inputs": 8, "latency_s": 1.0}, gather={"size": 1, "wait_ms": 10}, keep_events=True
        )
        call = asyncio.create_task(stage.gateway.complete(model="m", **_ask("a")))
        world.loop.call_at(1.0, lambda: world.loop.call_soon(lambda: world.loop.call_soon(call.cancel)))
        await asyncio.gather(call, return_exceptions=True)
        ends = [event for event in stage.events if isinstance(event, events.Responded | events.Cancelled)]
        assert len(ends) == 1

    virtual.run(main)
