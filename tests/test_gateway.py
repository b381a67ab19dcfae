"""The library's face: what bad input gets, what status shows, how it opens and closes."""

import asyncio
import json
import logging
import math
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from stage import USER, set_stage

import headgate
from headgate import wiring
from headgate.core.errors import Draining, HeadgateError, InvalidRequest, SettingsError, UnknownModel
from headgate.planner import virtual
from headgate.planner.virtual import World
from headgate.settings.summary import summary


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"model": "nobody"}, UnknownModel, "no model is called 'nobody'"),
        ({"model": "simulate"}, UnknownModel, "did you mean 'simulated'"),
        ({"model": "simulated/flakey"}, UnknownModel, "flaky"),
        ({"model": ""}, InvalidRequest, "model"),
        ({"model": "x" * 10_000}, InvalidRequest, "model"),
        ({"model": None}, InvalidRequest, "model"),
        ({"messages": []}, InvalidRequest, "at least one message"),
        ({"messages": "Hi"}, InvalidRequest, "list"),
        ({"messages": None}, InvalidRequest, "list"),
        ({"messages": [{"content": "no role"}]}, InvalidRequest, r"messages\[0\]"),
        ({"messages": [*USER, 7]}, InvalidRequest, r"messages\[1\]"),
        ({"messages": [{"role": "user", "content": 7}]}, InvalidRequest, "content"),
        (
            {"messages": [{"role": "user", "content": "x" * 10_000_000}]},
            InvalidRequest,
            "10,000,000 characters",
        ),
        ({"lane": "express"}, InvalidRequest, "'interactive' or 'batch'"),
        ({"deadline_s": math.nan}, InvalidRequest, "deadline_s"),
        ({"deadline_s": 0}, InvalidRequest, "deadline_s"),
        ({"deadline_s": -1}, InvalidRequest, "deadline_s"),
        ({"deadline_s": math.inf}, InvalidRequest, "deadline_s"),
        ({"deadline_s": "soon"}, InvalidRequest, "deadline_s"),
        ({"request_id": ""}, InvalidRequest, "request_id"),
        ({"request_id": "a\nb"}, InvalidRequest, "printable"),
        ({"tenant": ""}, InvalidRequest, "tenant"),
    ],
    ids=str,
)
def test_bad_input_gets_a_clear_typed_error_and_is_never_sent(
    changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {})
        with pytest.raises(error, match=says):
            await stage.gateway.complete(**{"model": "m", "messages": USER, **changes})
        assert stage.provider.calls == 0
        assert stage.all_free

    virtual.run(main)


@pytest.mark.parametrize(
    "upstream",
    [
        {"slots": -2},
        {"slots": 0},
        {"slots": math.nan},
        {"slots": 2.5},
        {"slots": "two"},
        {"slots": 1, "reserved_slots": 2},
        {"depth": -1},
        {"promote_after_s": math.nan},
        {"latency_s": math.nan},
        {"unknown_setting": 1},
        {"provider": "nobody"},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_before_anything_starts(upstream: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        virtual.run(lambda world: _never(set_stage(world, upstream)))
    assert "models.m.upstreams[0]" in str(caught.value)


async def _never(stage: object) -> None:
    raise AssertionError(stage)


def test_status_has_the_fields_of_queue_status_summed_and_one_by_one() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 2, "depth": 5, "latency_s": 10}, {"slots": 1, "depth": 0})
        calls = [
            asyncio.create_task(stage.gateway.complete(model="m", messages=USER, lane=lane))
            for lane in ("interactive", "interactive", "interactive", "batch")
        ]
        await asyncio.sleep(1)
        status = stage.gateway.status()
        assert (status.rt_queue, status.be_queue, status.max_queue_depth) == (1, 1, 0)
        first = status.upstreams[0]
        assert (first.total_slots, first.available_slots, first.accepting, first.max_queue_depth) == (
            2,
            0,
            True,
            5,
        )
        await asyncio.gather(*calls)

    virtual.run(main)


@pytest.mark.parametrize(("slots", "depth"), [(2, 20), (8, 4), (64, 1)])
def test_a_burst_that_fits_into_slots_and_queue_is_let_in_whole(slots: int, depth: int) -> None:
    """Also on a gateway that has just started and lets its first calls go one after the other."""

    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": slots, "depth": depth, "latency_s": 10.0})
        calls = [
            asyncio.create_task(stage.gateway.complete(model="m", messages=USER))
            for _ in range(slots + depth)
        ]
        await asyncio.sleep(1)
        status = stage.gateway.status()
        assert (status.rt_queue, stage.free_slots) == (depth, 0)
        await asyncio.gather(*calls)

    virtual.run(main)


def test_a_closed_gateway_refuses_and_dismisses_those_who_wait() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "latency_s": 10})
        calls = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(2)]
        await asyncio.sleep(1)
        await stage.gateway.aclose()
        with pytest.raises(Draining):
            await calls[1]
        for model in ("m", "simulated/instant"):
            with pytest.raises(Draining):
                await stage.gateway.complete(model=model, messages=USER)
        assert (await calls[0]).content, "who holds a slot may finish"

    virtual.run(main)


def test_it_opens_on_nothing_at_all_and_leaves_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> headgate.Reply:
        async with headgate.open(env={}) as gateway:
            return await gateway.complete(model="simulated/instant", messages=USER, agent_id="me")

    reply = asyncio.run(main())
    assert reply.content
    line = json.loads((tmp_path / ".headgate/logs/responses.jsonl").read_text())
    assert (line["request_id"], line["agent_id"], line["status"]) == (reply.request_id, "me", "success")


def test_opening_tells_the_worst_case_of_every_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        settings = {
            "data_dir": str(tmp_path),
            "models": {"m": {"upstreams": [{"provider": "simulated"}] * 2}},
        }
        async with headgate.open(settings, env={}):
            pass

    with caplog.at_level(logging.INFO, "headgate"):
        asyncio.run(main())
    assert "m: worst case: 6 calls, 300 s" in caplog.text


@pytest.mark.parametrize("retry", [{}, {"count_throttles": True}], ids=["usual", "strict"])
def test_no_call_exceeds_the_worst_case_that_is_promised(retry: dict[str, Any]) -> None:
    """If a number of calls is told at the start, an upstream that throttles for ever must not get more of them."""
    upstream = {"provider": "simulated", "latency_s": 0, "outcome": {"status": 429, "retry_after_s": 1}}
    settings = wiring.read_settings({"models": {"m": {"upstreams": [upstream], "retry": retry}}}, env={})
    told = re.search(r"^m: worst case: (\d+) calls?, \d+ s$", summary(settings), re.MULTILINE)

    async def main(world: World) -> None:
        stage = set_stage(world, upstream, retry=retry)
        with pytest.raises(HeadgateError):
            await stage.gateway.complete(model="m", messages=USER)
        assert told is None or stage.provider.calls <= int(told[1])

    virtual.run(main)


def test_leaving_the_gateway_lets_calls_in_flight_finish_and_their_lines_be_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with headgate.open({"data_dir": str(tmp_path)}, env={}) as gateway:
            call = asyncio.create_task(gateway.complete(model="simulated", messages=USER, request_id="late"))
            await asyncio.sleep(0)
        assert (await call).content

    asyncio.run(main())
    assert json.loads((tmp_path / "logs/responses.jsonl").read_text())["request_id"] == "late"


def test_the_built_in_model_does_not_count_in_the_status_of_others() -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {"slots": 1, "depth": 1, "latency_s": 10})
        calls = [asyncio.create_task(stage.gateway.complete(model="m", messages=USER)) for _ in range(2)]
        await asyncio.sleep(1)
        status = stage.gateway.status()
        assert (status.total_slots, status.accepting) == (1, False)
        await asyncio.gather(*calls)
        assert (await stage.gateway.complete(model="simulated", messages=USER)).content

    virtual.run(main)


def test_the_blocking_gateway_says_so_when_it_is_called_from_within_itself(tmp_path: Path) -> None:
    """A judge as a check is natural code; it once waited for itself for ever."""
    with headgate.open_blocking({"data_dir": str(tmp_path)}, env={}) as gateway:

        def judge(answer: headgate.Answer) -> bool:
            return bool(gateway.complete(model="simulated/instant", messages=USER).content)

        with pytest.raises(headgate.CheckBroken, match="not from within"):
            gateway.complete(model="simulated/instant", messages=USER, check=judge)


def test_closing_the_blocking_gateway_tells_the_calls_of_other_threads(tmp_path: Path) -> None:
    ends: list[BaseException] = []

    def ask() -> None:
        try:
            gateway.complete(model="simulated/slow", messages=USER)
        except headgate.HeadgateError as error:
            ends.append(error)

    with headgate.open_blocking({"data_dir": str(tmp_path)}, env={}) as gateway:
        thread = threading.Thread(target=ask)
        thread.start()
        while not any(gate.available_slots < gate.total_slots for gate in gateway.status().upstreams):
            pass
    thread.join()
    assert [type(error) for error in ends] == [Draining]


def test_a_blocking_gateway_says_so_in_a_forked_child(tmp_path: Path) -> None:
    """Its loop's thread stayed with the parent: a call would wait for ever."""
    script = """
import os, sys, headgate
with headgate.open_blocking({"data_dir": sys.argv[1]}, env={}) as gateway:
    if os.fork() == 0:
        try:
            gateway.complete(model="simulated", messages=[{"role": "user", "content": "Hi"}], deadline_s=2)
        except RuntimeError as error:
            os._exit(0 if "process" in str(error) else 1)
        os._exit(1)
    _, status = os.wait()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)],
        timeout=30,
        check=False,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


def test_scripts_can_do_without_an_event_loop(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path)}
    with headgate.open_blocking(settings, env={}) as gateway:
        reply = gateway.complete(model="simulated/instant", messages=USER)
        many = gateway.complete_many([{"messages": USER}] * 3, model="simulated/instant")
        text = "".join(chunk.text for chunk in gateway.stream(model="simulated/instant", messages=USER))
        status = gateway.status()
        for chunk in gateway.stream(model="simulated/instant", messages=USER):
            assert chunk.text
            break
        with pytest.raises(UnknownModel):
            gateway.complete(model="nobody", messages=USER)
    assert text == reply.content
    assert [item.content for item in many if isinstance(item, headgate.Reply)] == [text] * 3
    assert status.total_slots > 0
    with pytest.raises(RuntimeError, match="with"):
        gateway.complete(model="simulated", messages=USER)


def test_scripts_can_embed_without_an_event_loop(tmp_path: Path) -> None:
    with headgate.open_blocking({"data_dir": str(tmp_path)}, env={}) as gateway:
        reply = gateway.embed(model="simulated/instant", input=["a", "b"], dimensions=4)
        with pytest.raises(InvalidRequest):
            gateway.embed(model="simulated/instant", input="")
    assert [len(vector) for vector in reply.vectors] == [4, 4]


def test_a_script_with_bad_settings_gets_them_told_and_no_thread_stays() -> None:
    with (
        pytest.raises(SettingsError, match="slots"),
        headgate.open_blocking(
            {"models": {"m": {"upstreams": [{"provider": "simulated", "slots": -1}]}}}, env={}
        ),
    ):
        pytest.fail("it must not open")


def test_many_members_of_a_family_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World) -> None:
        stage = set_stage(world, {})
        monkeypatch.setattr("headgate.calls.routes.MOST_FAMILY_MEMBERS", 3)
        for name in ("instant", "flaky", "many", "slow", "blank"):
            stage.gateway.routes.find(f"simulated/{name}")
        assert len(stage.gateway.routes._members) == 3

    virtual.run(main)


@headgate.task("shout")
async def shout(ctx: headgate.Context, text: str) -> str:
    return text.upper()


@headgate.task("sleep for ever")
async def sleep_for_ever(ctx: headgate.Context, _input: None) -> None:
    await asyncio.sleep(3600)


def test_the_blocking_gateway_has_jobs_too(tmp_path: Path) -> None:
    """A script can submit, wait and look without an event loop of its own."""
    with headgate.open_blocking({"data_dir": str(tmp_path)}, env={}, work=True, tasks=[shout]) as gateway:
        handle = gateway.jobs.submit("shout", "hello")
        assert handle.result(timeout=30) == "HELLO"
        assert gateway.jobs.get(handle.id).state == "completed"
        assert [job.id for job in gateway.jobs.list(state="completed")] == [handle.id]
        assert gateway.run(lambda inner: inner.dead_letters.list()) == []


def test_closing_the_blocking_gateway_gives_running_jobs_back_uncounted(tmp_path: Path) -> None:
    """Leaving the block ends calls at once, but a job is no call: it loses no attempt by it."""
    settings = {"data_dir": str(tmp_path)}
    with headgate.open_blocking(settings, env={}, work=True, tasks=[sleep_for_ever]) as gateway:
        handle = gateway.jobs.submit("sleep for ever", timeout_s=5)
        while handle.job().state != "running":
            time.sleep(0.01)
        started = time.monotonic()
        gateway.run(lambda inner: inner.aclose(drain_s=0.1))
        assert time.monotonic() - started < 10
    with headgate.open_blocking(settings, env={}) as gateway:
        job = gateway.jobs.get(handle.id)
        assert (job.state, job.attempts, job.deferrals) == ("pending", 0, 1)
