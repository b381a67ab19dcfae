"""Receivers in real time: one that dawdles, and what it may cost the others."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from observe.receivers_stage import Receiver as Listener
from server.upstreams import until
from standardwebhooks.webhooks import Webhook

import headgate
from headgate.core.events import WebhookAttempted
from headgate.core.job import Job, JobState
from headgate.observe.metrics import Metrics
from headgate.observe.receivers import MOST_AT_A_POOR_ONE, MOST_REMEMBERED, Receiver, Receivers
from headgate.runner.context import Context


@headgate.task("work")
async def work(ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    return given


def settings(folder: Path, **webhooks: Any) -> dict[str, Any]:
    return {"data_dir": str(folder), "webhooks": {"allow_private": True, **webhooks}}


async def first_delivery(gateway: headgate.Gateway, *, attempts: int) -> Job:
    """The delivery once so many attempts are behind it."""
    async with asyncio.timeout(10):
        while True:
            for one in await gateway.webhooks.list():
                job = await gateway.jobs.get(one.id)
                if len(job.history) >= attempts:
                    return job
            await asyncio.sleep(0.01)


def test_a_message_passes_the_official_library_s_check(tmp_path: Path) -> None:
    async def main() -> None:
        receiver = Listener(time.monotonic)
        async with headgate.open(settings(tmp_path), env={}, work=True, tasks=[work]) as gateway:
            metrics = Metrics(models=gateway.routes.names, status=gateway.status)
            gateway.listen(metrics)
            await receiver.up()
            loud = receiver.url().replace("http://", "HTTP://")  # A scheme is one in capitals, too.
            await (await gateway.jobs.submit("work", {"n": 1}, webhook=loud)).wait(10)
            await first_delivery(gateway, attempts=1)
            (message,) = receiver.received
            read = Webhook(await gateway.webhooks.secret()).verify(message.body, message.headers)
            assert read["data"]["result"] == {"n": 1}
            assert b'headgate_webhook_deliveries_total{outcome="delivered"} 1\n' in metrics.exposition()
        receiver.close()

    asyncio.run(main())


def test_a_receiver_that_says_nothing_fails_in_time(tmp_path: Path) -> None:
    """It is a failure like any other: counted, told, and tried again 5 s later."""

    async def main() -> None:
        gone = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            gone.set()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        heard: list[Any] = []
        rules = settings(tmp_path, timeout_s=0.3)
        async with headgate.open(rules, env={}, work=True, tasks=[work]) as gateway:
            gateway.listen(heard.append)
            await gateway.jobs.submit("work", {}, webhook=url)
            delivery = await first_delivery(gateway, attempts=1)
            await gone.wait()
        assert (delivery.state, delivery.attempts, delivery.error_class) == (JobState.PENDING, 1, "transient")
        assert "had not finished its answer when the time was up" in (delivery.error or "")
        (attempt,) = [event for event in heard if isinstance(event, WebhookAttempted)]
        assert attempt.outcome == "failed"
        assert 250 < attempt.duration_ms < 2000
        server.close()

    asyncio.run(main())


def test_a_receiver_that_dawdles_does_not_keep_the_workers_from_other_jobs(tmp_path: Path) -> None:
    """Forty messages to a receiver that never answers, eight workers, and jobs go on as if nothing were."""

    async def main() -> None:
        most = under_way = 0

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal most, under_way
            under_way += 1
            most = max(most, under_way)
            await reader.read()
            under_way -= 1
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        rules = {**settings(tmp_path, timeout_s=1.0), "jobs": {"workers": 8}}
        async with headgate.open(rules, env={}, work=True, tasks=[work]) as gateway:
            await (await gateway.jobs.submit("work", {}, webhook=url)).wait(10)
            await first_delivery(gateway, attempts=1)
            most = 0
            for handle in await gateway.jobs.submit_many(
                [{"task": "work", "input": {}, "webhook": url}] * 40
            ):
                await handle.wait(10)
            started = time.monotonic()
            for _ in range(20):
                await (await gateway.jobs.submit("work", {})).wait(10)
            took_s = time.monotonic() - started
            deferred = [job for job in await gateway.webhooks.list() if job.deferrals]
        assert took_s < 1.0, "less than one silence"
        assert 1 <= most <= MOST_AT_A_POOR_ONE
        assert deferred
        assert all(job.attempts <= 1 for job in deferred), "to stand back costs no attempt"
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize(("well", "took_s"), [(False, 0.1), (True, 5.0)])
def test_a_poor_receiver_gets_few_at_a_time_until_it_does_well_again(well: bool, took_s: float) -> None:
    receivers = Receivers(1000)
    poor = Receiver("a", "http://same.example")
    for _ in range(100):
        assert receivers.has_room(poor)
        receivers.enter(poor)
    for _ in range(100):
        receivers.leave(poor, answered_well=well, took_s=took_s)
    for _ in range(MOST_AT_A_POOR_ONE):
        assert receivers.has_room(poor)
        receivers.enter(poor)
    assert not receivers.has_room(poor)
    assert receivers.has_room(Receiver("a", "http://other.example"))
    assert receivers.has_room(Receiver("b", "http://same.example")), "another tenant's path may be quick"
    receivers.leave(poor, answered_well=True, took_s=0.1)
    receivers.enter(poor)
    assert receivers.has_room(poor)


def test_only_so_many_poor_receivers_are_remembered() -> None:
    """Strangers name them: a thousand addresses that lead nowhere must not fill the memory."""
    receivers = Receivers(1000)
    for number in range(MOST_REMEMBERED + 10):
        receivers.enter(Receiver("a", f"{number}"))
        receivers.leave(Receiver("a", f"{number}"), answered_well=False, took_s=0.1)
    assert len(receivers._poor) == MOST_REMEMBERED
    assert not receivers._under_way


def test_a_tenant_with_many_addresses_leaves_places_to_the_next() -> None:
    """A thousand addresses that nobody has tried yet are not poor yet, and could each take a worker."""
    receivers = Receivers(8)
    got = {}
    for tenant in "abcde":
        got[tenant] = 0
        while receivers.has_place(tenant):
            receivers.enter(Receiver(tenant, f"{got[tenant]}"))
            got[tenant] += 1
    assert got == {"a": 4, "b": 2, "c": 1, "d": 1, "e": 0}, "and never more than eight in all"
    receivers.leave(Receiver("b", "0"), answered_well=True, took_s=0.1)
    assert receivers.has_place("e")


def test_a_lone_place_is_anybody_s() -> None:
    receivers = Receivers(1)
    assert receivers.has_place("a")
    receivers.enter(Receiver("a", "x"))
    assert not receivers.has_place("a")
    assert not receivers.has_place("b")


def test_a_tenant_s_slow_path_does_not_hold_up_another_s_at_the_same_host(tmp_path: Path) -> None:
    """Two tenants behind one host and port: what one of them reads of its deliveries, too, is of its own only."""

    async def main() -> None:
        served: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            path = (await reader.readline()).split()[1]
            served.append(path)
            if path == b"/quick":
                writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
            else:
                await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        rules = {**settings(tmp_path, timeout_s=2.0), "jobs": {"workers": 16}}
        async with headgate.open(rules, env={}, work=True, tasks=[work]) as gateway:
            slow = [{"task": "work", "input": {}, "webhook": f"{host}/slow"}] * 12
            await gateway.jobs.submit_many(slow, tenant="slow")
            await until(lambda: len(served) >= 6)
            quick = [{"task": "work", "input": {}, "webhook": f"{host}/quick"}] * 3
            started = time.monotonic()
            for handle in await gateway.jobs.submit_many(quick, tenant="quick"):
                await handle.wait(10)
            await until(lambda: served.count(b"/quick") == 3)
            took_s = time.monotonic() - started
            waiting = [job.id for job in await gateway.webhooks.list(tenant="slow") if job.deferrals]
            told = {(await gateway.jobs.get(job_id, tenant="slow")).error for job_id in waiting}
        assert took_s < 1.5, "less than one silence"
        assert told & {
            "there is no free place for this delivery yet",
            f"{host} is slow or down: it gets few deliveries at a time",
        }, told
        server.close()

    asyncio.run(main())


def test_more_deliveries_than_may_be_under_way_all_arrive(tmp_path: Path) -> None:
    """One worker of two: those that stand back come again, and lose no attempt by it."""

    async def main() -> None:
        receiver = Listener(time.monotonic)
        await receiver.up()
        rules = {**settings(tmp_path), "jobs": {"workers": 2}}
        async with headgate.open(rules, env={}, work=True, tasks=[work]) as gateway:
            listed = [{"task": "work", "input": {}, "webhook": receiver.url(f"/{n}")} for n in range(20)]
            for handle in await gateway.jobs.submit_many(listed):
                await handle.wait(10)
            for delivery in await gateway.webhooks.list():
                ended = await gateway.jobs.wait(delivery.id, timeout=20)
                assert (ended.state, ended.attempts) == (JobState.COMPLETED, 1)
        assert sorted(message.path for message in receiver.received) == sorted(f"/{n}" for n in range(20))
        receiver.close()

    asyncio.run(main())
