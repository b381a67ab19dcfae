"""Deliveries with all their parts, in virtual time: the real worker and store, and receivers on real sockets."""

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from batches.lines import CHAT, jsonl, line
from jobstage import JobStage, JobStages, database, on_each_database, on_job_stages
from observe.receivers_stage import Answer, Receiver

import headgate
from headgate.core.errors import InvalidRequest, StateConflict, UnknownJob
from headgate.core.events import WebhookAttempted
from headgate.core.job import Job, JobState
from headgate.core.webhook_wire import SCHEDULE
from headgate.runner.context import Context

__all__ = ["database"]
MINUTE_S = 60.0
HOUR_S = 3600.0
OPEN = {"allow_private": True}
"""Jobs may name this machine, where the receivers of these tests are."""
SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


@headgate.task("work")
async def work(ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    if given.get("fails"):
        raise headgate.Reject("as asked")
    if given.get("sleeps_s"):
        await ctx._clock.sleep(given["sleeps_s"])
    return {"echo": given}


@contextmanager
def receiving(stages: JobStages, *answers: Answer) -> Iterator[Receiver]:
    receiver = Receiver(lambda: stages.now, answers)
    try:
        yield receiver
    finally:
        receiver.close()


async def open_stage(stages: JobStages, **webhooks: Any) -> JobStage:
    return await stages.open(tasks=[work], webhooks={**OPEN, **webhooks})


async def delivered(stage: JobStage, *, tenant: str = "local") -> list[Job]:
    """All deliveries once they have ended, oldest first."""
    found = await stage.gateway.webhooks.list(tenant=tenant)
    return [await stage.gateway.jobs.wait(job.id, tenant=tenant) for job in reversed(found)]


@on_job_stages
async def test_a_job_s_own_address_hears_of_its_end(stages: JobStages) -> None:
    stage = await open_stage(stages)
    with receiving(stages) as receiver:
        await receiver.up()
        job = await stage.ended("work", {"n": 1}, webhook=receiver.url(), metadata={"order": 7})
        (delivery,) = await delivered(stage)
        (message,) = receiver.received

    assert (delivery.state, delivery.result) == (JobState.COMPLETED, {"status": 204})
    assert message.told["type"] == "job.completed"
    data = message.told["data"]
    assert (data["id"], data["result"], data["metadata"]) == (job.id, {"echo": {"n": 1}}, {"order": 7})
    assert message.is_signed_with(await stage.gateway.webhooks.secret())
    assert not message.is_signed_with(await stage.gateway.webhooks.secret(tenant="another"))
    assert delivery.metadata == {"event": "job.completed", "subject": job.id, "webhook_id": message.id}
    assert [event.outcome for event in stage.told(WebhookAttempted)] == ["delivered"]


class Comings:
    """A gateway that is gone most of the time, and back a minute before anything is due: hours cost nothing then."""

    def __init__(self, stages: JobStages, **webhooks: Any) -> None:
        self._stages = stages
        self._webhooks = webhooks
        self.lives = 0

    async def open(self) -> JobStage:
        self.lives += 1
        return await open_stage(self._stages, **self._webhooks)

    async def leave(self, stage: JobStage, seconds: float) -> JobStage:
        await stage.gateway.aclose(0.0)
        await self._stages.world.clock.sleep(seconds)
        return await self.open()

    async def until_ended(
        self, stage: JobStage, job_id: str, at: Mapping[float, Callable[[], Awaitable[None]]] | None = None
    ) -> JobStage:
        """See a job to its end; at the times in `at` something happens outside."""
        plans = sorted((at or {}).items())
        while not (job := await stage.gateway.jobs.get(job_id)).state.final:
            left_s = job.run_at.timestamp() - stage.epoch
            if left_s > 2 * MINUTE_S and job.state is JobState.PENDING:
                back_at = stage.now + left_s - MINUTE_S
                if plans and plans[0][0] < back_at:
                    happens_at, happens = plans.pop(0)
                    stage = await self.leave(stage, happens_at - stage.now)
                    await happens()
                else:
                    stage = await self.leave(stage, back_at - stage.now)
            await stage.world.clock.sleep(1.0)
        return stage


def check_schedule(job: Job, delivery: Job) -> list[float]:
    """Each attempt of a delivery starts when the table says, a tenth later at most; returns the waits."""
    assert job.finished_at is not None
    starts = [entry.started_at.timestamp() for entry in delivery.history if entry.started_at is not None]
    assert starts[0] - job.finished_at.timestamp() < 2.0
    waits = [after - before for before, after in itertools.pairwise(starts)]
    for wait_s, listed_s in zip(waits, SCHEDULE.waits_s, strict=False):
        assert listed_s <= wait_s < listed_s * 1.1 + 2.0
    return waits


@on_job_stages
async def test_a_receiver_that_is_down_for_a_day_gets_its_message_on_schedule(stages: JobStages) -> None:
    """And once more after it has answered 500, with the gateway away most of that time."""
    comings = Comings(stages)
    with receiving(stages, 500) as receiver:
        stage = await comings.open()
        job = await stage.ended("work", {}, webhook=receiver.url())
        (delivery,) = await stage.gateway.webhooks.list()
        stage = await comings.until_ended(stage, delivery.id, {24 * HOUR_S: receiver.up})
        delivery = await stage.gateway.jobs.get(delivery.id)
        secret = await stage.gateway.webhooks.secret()
        failed, taken = receiver.received

    assert (delivery.state, delivery.attempts, delivery.crashes) == (JobState.COMPLETED, 9, 0)
    assert len(check_schedule(job, delivery)) == 8
    assert 31 * HOUR_S < failed.at < 36 * HOUR_S, (
        "the first attempt after it came up: 31 h 35 min, and a tenth"
    )
    assert comings.lives >= 6
    assert (failed.id, failed.body) == (taken.id, taken.body)
    assert failed.headers["webhook-timestamp"] != taken.headers["webhook-timestamp"]
    assert failed.headers["webhook-signature"] != taken.headers["webhook-signature"]
    assert failed.is_signed_with(secret)
    assert taken.is_signed_with(secret)


@on_job_stages
async def test_a_delivery_that_is_used_up_is_a_dead_letter_that_can_be_replayed(stages: JobStages) -> None:
    """And it tells nobody of itself: that would go on for ever."""
    with receiving(stages, *([503] * 10)) as receiver:
        comings = Comings(stages, url=receiver.url(), secret=SECRET)
        stage = await comings.open()
        await receiver.up()
        job = await stage.ended("work", {})
        (delivery,) = await stage.gateway.webhooks.list()
        stage = await comings.until_ended(stage, delivery.id)
        delivery = await stage.gateway.jobs.get(delivery.id)
        assert (delivery.state, delivery.reason, delivery.attempts) == (JobState.DEAD_LETTER, "exhausted", 10)
        assert delivery.error == f"transient 503: http://127.0.0.1:{receiver.port} answered 503"
        assert sum(check_schedule(job, delivery)) == pytest.approx(75.6 * HOUR_S, rel=0.1)
        stage = await comings.leave(stage, 2 * HOUR_S)
        await stage.world.clock.sleep(MINUTE_S)
        assert len(receiver.received) == 10, "it is not revived, and there is no message about a message"

        await stage.gateway.dead_letters.replay(delivery.id, by="operator")
        assert (await stage.gateway.jobs.wait(delivery.id)).state is JobState.COMPLETED
        assert len({message.id for message in receiver.received}) == 1
        assert all(message.is_signed_with(SECRET) for message in receiver.received)
        assert len(await stage.gateway.webhooks.list()) == 1


@on_job_stages
async def test_nobody_forges_a_message_by_replaying_a_delivery_with_another_input(stages: JobStages) -> None:
    """A delivery is signed by us: what it says is not for tenants to choose."""
    stage = await stages.open(tasks=[work])
    await stage.ended("work", {}, webhook="http://127.1/")
    (delivery,) = await delivered(stage)
    assert delivery.state is JobState.DEAD_LETTER
    with pytest.raises(InvalidRequest):
        await stage.gateway.dead_letters.replay(
            delivery.id, input={**delivery.input, "payload": {"type": "alert.fired"}}, by="tenant"
        )
    with pytest.raises(InvalidRequest):
        await stage.submit("headgate.webhook", delivery.input)


@on_job_stages
async def test_410_disables_an_address_until_it_is_enabled_again(stages: JobStages) -> None:
    stage = await open_stage(stages)
    with receiving(stages, 410) as receiver:
        await receiver.up()
        for _ in range(2):
            await stage.ended("work", {}, webhook=receiver.url())
            await delivered(stage)
            await stage.world.clock.sleep(1.0)
        told, skipped = await delivered(stage)
        assert (told.state, skipped.state) == (JobState.SKIPPED, JobState.SKIPPED)
        assert told.reason == "it answered 410: this address gets nothing more until it is enabled again"
        assert skipped.reason is not None
        assert skipped.reason.startswith("the address is disabled since 2026-01-01T00:00")
        assert len(receiver.received) == 1

        # Another address and another tenant are no part of it.
        await stage.ended("work", {}, webhook=receiver.url("/other"))
        await stage.gateway.jobs.wait(
            (await stage.submit("work", {}, webhook=receiver.url(), tenant="acme")).id, tenant="acme"
        )
        await delivered(stage)
        await delivered(stage, tenant="acme")
        assert [message.path for message in receiver.received] == ["/hook", "/other", "/hook"]

        assert not await stage.gateway.webhooks.enable(receiver.url("/other"))
        assert await stage.gateway.webhooks.enable(receiver.url())
        await stage.ended("work", {}, webhook=receiver.url())
        await delivered(stage)
        assert len(receiver.received) == 4
        outcomes = [event.outcome for event in stage.told(WebhookAttempted)]
        assert outcomes == ["gone", "skipped", "delivered", "delivered", "delivered"]


@on_job_stages
async def test_a_redirect_is_a_failure_and_is_not_followed(stages: JobStages) -> None:
    with receiving(stages) as elsewhere:
        away = f"HTTP/1.1 307 Go\r\nLocation: {elsewhere.url()}\r\nContent-Length: 0\r\n\r\n".encode()
        with receiving(stages, away) as receiver:
            stage = await open_stage(stages)
            await elsewhere.up()
            await receiver.up()
            await stage.ended("work", {}, webhook=receiver.url())
            (delivery,) = await delivered(stage)
            assert (delivery.state, delivery.attempts) == (JobState.COMPLETED, 2)
            assert "redirects are not followed" in delivery.history[0].message
            assert (len(receiver.received), len(elsewhere.received)) == (2, 0)


@on_job_stages
async def test_a_receiver_says_when_to_come_back_and_a_cut_answer_is_a_failure(stages: JobStages) -> None:
    busy = b"HTTP/1.1 429 Slow\r\nRetry-After: 600\r\nContent-Length: 0\r\n\r\n"
    with receiving(stages, busy, None, b"nonsense\r\n\r\n") as receiver:
        stage = await open_stage(stages)
        await receiver.up()
        await stage.ended("work", {}, webhook=receiver.url())
        (delivery,) = await delivered(stage)
        assert (delivery.state, delivery.attempts, delivery.deferrals) == (JobState.COMPLETED, 4, 0)
        at = [message.at for message in receiver.received]
        assert at[1] - at[0] == pytest.approx(600.0, abs=2), "not the 5 s of the schedule"
        assert 300.0 <= at[2] - at[1] < 332.0


@on_job_stages
async def test_addresses_of_strangers_are_guarded_and_the_operator_s_is_trusted(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    with receiving(stages) as receiver:
        stage = await stages.open(tasks=[work], webhooks={"url": receiver.url()})
        await receiver.up()
        # `127.1` is a name to us: only looking it up shows where it leads.
        await stage.ended("work", {}, webhook=f"http://127.1:{receiver.port}/inside")
        refused, told = sorted(await delivered(stage), key=lambda job: job.state, reverse=True)
        assert (refused.state, refused.reason, refused.attempts) == (JobState.DEAD_LETTER, "permanent", 1)
        stranger = f"http://127.1:{receiver.port}"
        assert refused.error == f"rejected: {stranger} leads to an address that is not allowed"
        assert "127.0.0.1" not in str(refused), "where a name leads is not for tenants"
        assert f"job {refused.id} failed: {stranger} leads to 127.0.0.1: this machine" in caplog.text
        assert told.state is JobState.COMPLETED
        assert [message.path for message in receiver.received] == ["/hook"]
        assert receiver.url() not in str(told), "tenants see their deliveries, not the operator's address"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://a.example/", "http:// or https://"),
        ("//a.example/", "http:// or https://"),
        ("https://user:pass@a.example/", "user name or password"),
        ("https://a.example\\@b.example/", "backslash"),
        ("http://127.0.0.1/", "this machine"),
        ("http://localhost:8400/v1/jobs", "this machine"),
        ("http://[::1]/", "this machine"),
        ("http://10.0.0.8/", "a private network"),
        ("http://169.254.169.254/latest/meta-data", "link-local"),
        ("https://a.example/" + "x" * 2000, "at most 2,000 characters"),
    ],
)
def test_an_address_that_cannot_work_is_refused_at_the_door(url: str, words: str, tmp_path: Any) -> None:
    @on_job_stages
    async def scene(stages: JobStages) -> None:
        stage = await stages.open(tasks=[work], work=False)
        with pytest.raises(InvalidRequest, match=words) as caught:
            await stage.submit("work", {}, webhook=url)
        assert caught.value.param == "webhook"
        assert sum((await stage.gateway.jobs.count()).values()) == 0

    scene(tmp_path=tmp_path)


@on_job_stages
async def test_every_end_that_needs_a_person_is_told_once(stages: JobStages) -> None:
    """Refused by its task, or expired in the line without a worker's doing."""
    with receiving(stages) as receiver:
        rules = {"url": receiver.url(), "events": ["dead_letter"]}
        stage = await stages.open(tasks=[work], webhooks=rules, work=False)
        await receiver.up()
        refused = await stage.submit("work", {"fails": True}, run_at=stage.epoch + 60)
        expired = await stage.submit("work", {}, expires_after_s=10)
        fine = await stage.submit("work", {}, run_at=stage.epoch + 60)
        await stage.world.clock.sleep(MINUTE_S)
        assert await stage.gateway.durable._upkeep.expire() == 1
        assert await stage.gateway.durable._upkeep.expire() == 0
        await stage.gateway.work()
        await fine.wait()
        await refused.wait()
        await delivered(stage)
        told = {message.told["data"]["id"]: message.told["data"]["reason"] for message in receiver.received}
        assert told == {refused.id: "permanent", expired.id: "expired"}
        assert [message.told["type"] for message in receiver.received] == ["job.dead_letter"] * 2


@on_job_stages
async def test_what_was_told_is_told_again_under_the_same_id(stages: JobStages) -> None:
    with receiving(stages) as receiver, receiving(stages) as everybody:
        stage = await open_stage(stages, url=everybody.url())
        await receiver.up()
        await everybody.up()
        job = await stage.ended("work", {"n": 1}, webhook=receiver.url())
        await delivered(stage)
        again = await stage.gateway.webhooks.redeliver(job.id)
        assert (await again.wait()).state is JobState.COMPLETED
        assert (len(receiver.received), len(everybody.received)) == (2, 1), "to its own address"
        first, second = receiver.received
        assert (first.id, first.told) == (second.id, second.told)

        to_everybody = next(one for one in await delivered(stage) if one.input["url"] is None)
        await (await stage.gateway.webhooks.redeliver(to_everybody.id)).wait()
        assert len(everybody.received) == 2
        assert {message.id for message in (*receiver.received, *everybody.received)} == {first.id}


@on_job_stages
async def test_only_ends_that_are_told_can_be_told_again(stages: JobStages) -> None:
    stage = await open_stage(stages)
    silent = await stage.ended("work", {})
    running = await stage.submit("work", {"sleeps_s": 60}, webhook="http://127.0.0.1:1/")
    for job_id in (silent.id, running.id):
        with pytest.raises(StateConflict, match="nobody is told"):
            await stage.gateway.webhooks.redeliver(job_id)
    with pytest.raises(UnknownJob):
        await stage.gateway.webhooks.redeliver(silent.id, tenant="another")


@on_job_stages
async def test_a_job_that_ends_again_is_news(stages: JobStages) -> None:
    """A replay is a new generation: receivers that know the first message must not take the second for a repeat."""
    with receiving(stages) as receiver:
        stage = await open_stage(stages)
        await receiver.up()
        job = await stage.ended("work", {"fails": True}, webhook=receiver.url())
        await delivered(stage)
        await stage.gateway.dead_letters.replay(job.id, input={}, by="somebody")
        await stage.gateway.jobs.wait(job.id)
        await delivered(stage)
        first, second = receiver.received
        assert (first.told["type"], second.told["type"]) == ("job.dead_letter", "job.completed")
        assert first.id != second.id


@on_job_stages
async def test_a_rotated_secret_signs_for_a_day(stages: JobStages) -> None:
    stage = await open_stage(stages)
    desk = stage.gateway.webhooks
    with receiving(stages) as receiver:
        await receiver.up()
        old = await desk.secret()
        new = await desk.rotate()
        for wait_s in (23 * HOUR_S, 2 * HOUR_S):
            await stage.world.clock.sleep(wait_s)
            await stage.ended("work", {}, webhook=receiver.url())
            await delivered(stage)
        within, later = receiver.received
    assert (within.is_signed_with(new), within.is_signed_with(old)) == (True, True)
    assert (later.is_signed_with(new), later.is_signed_with(old)) == (True, False)


@on_job_stages
async def test_alerts_go_to_the_operator_who_asked_for_them(stages: JobStages) -> None:
    with receiving(stages) as receiver:
        stage = await open_stage(stages, url=receiver.url(), events=["alert"], secret=SECRET)
        await receiver.up()
        await stage.ended("work", {})
        for fired in (True, False):
            handle = await stage.gateway.webhooks.alert("dead_letters", fired=fired, data={"count": 11})
            assert handle is not None
            await handle.wait()
        told = [(message.told["type"], message.told["data"]) for message in receiver.received]
        data = {"alert": "dead_letters", "count": 11}
        assert told == [("alert.fired", data), ("alert.cleared", data)]
        assert all(message.is_signed_with(SECRET) for message in receiver.received)

        quiet = await open_stage(stages, url=receiver.url(), events=["completed"])
        assert await quiet.gateway.webhooks.alert("dead_letters", fired=True, data={}) is None


@on_job_stages
async def test_a_delivery_without_its_settings_address_is_skipped(stages: JobStages) -> None:
    with receiving(stages) as receiver:
        first = await open_stage(stages, url=receiver.url())
        await first.ended("work", {})
        await first.gateway.aclose(0.0)
        second = await open_stage(stages)
        (delivery,) = await delivered(second)
        assert (delivery.state, delivery.reason) == (JobState.SKIPPED, "no webhooks.url is set any more")


@on_each_database
async def test_a_batch_is_told_of_once_and_its_lines_are_not(stages: JobStages) -> None:
    """Fifty thousand lines would be fifty thousand messages, and what came of them is in the batch's files."""
    with receiving(stages) as receiver:
        await receiver.up()
        stage = await open_stage(stages, url=receiver.url())
        content = jsonl(range(3)) + line("bad", model="simulated/rejecting")
        file = await stage.gateway.files.create(content)
        created = await stage.gateway.batches.create(input_file_id=file.id, endpoint=CHAT)
        batch = await stage.gateway.batches.wait(created.batch.id)
        lines = await stage.gateway.jobs.list(task="chat")
        await delivered(stage)
        (message,) = receiver.received

    assert batch.request_counts.failed == 1
    told = message.told["data"]
    assert (message.told["type"], told["task"], told["result"]["id"]) == (
        "job.completed",
        "headgate.batch",
        batch.id,
    )
    for one in lines:
        with pytest.raises(StateConflict, match="nobody is told"):
            await stage.gateway.webhooks.redeliver(one.id)
