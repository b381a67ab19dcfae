"""Workers are killed while they end jobs and while they deliver: each end is told, under one id, and written once."""

import asyncio
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from conftest import Figure
from crash import audit
from crash.harness import Child, Family, Site, until
from crash.tasks import Worker
from standardwebhooks.webhooks import Webhook

import headgate
from headgate.core.job import Job, JobState
from headgate.core.webhook import TASK
from headgate.core.webhook_wire import SCHEDULE
from headgate.stores.failpoints import MOMENTS

JOBS = 24
LEASE_S = 5.0


class Receiver:
    """A server in a thread: it keeps what it gets, and answers what it is told, or only when it is let."""

    def __init__(self) -> None:
        self.received: list[tuple[float, dict[str, str], bytes]] = []
        self.answers: Iterator[int] = itertools.repeat(204)
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.received.append((time.monotonic(), dict(self.headers.items()), body))
                receiver.may_answer.wait()
                self.send_response(next(receiver.answers))
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()

    def check_all(self, secret: str) -> Counter[str]:
        """Every message passes the official library; how often each id came. The same id is the same message."""
        bodies: dict[str, bytes] = {}
        for _, headers, body in self.received:
            Webhook(secret).verify(body, headers)
            assert bodies.setdefault(headers["webhook-id"], body) == body
        return Counter(headers["webhook-id"] for _, headers, _ in self.received)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def start_worker(family: Family, receiver: Receiver, failpoint: str | None = None) -> Child:
    settings = {**family.site.settings(lease_s=LEASE_S), "webhooks": {"url": receiver.url}}
    return family.start("worker", failpoint=failpoint, settings=settings, pace=1.0)


def look(site: Site) -> tuple[str, Sequence[Job]]:
    """The secret that signs, and all deliveries with their history."""

    async def read() -> tuple[str, Sequence[Job]]:
        async with headgate.open(site.settings(), env={}, tasks=Worker(site.ledgers).tasks()) as gateway:
            found = [await gateway.jobs.get(job.id) for job in await gateway.webhooks.list(limit=1000)]
            return await gateway.webhooks.secret(), found

    return asyncio.run(read())


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_death_around_the_end_of_jobs_tells_each_end_once_written(
    family: Family, site: Site, receiver: Receiver, figure: Figure, moment: str
) -> None:
    """Before the commit neither the end nor its delivery is there, after it both are; nothing in between."""
    ids = audit.submit(site, [{"run_s": 0.01 * (number % 5)} for number in range(JOBS)])
    for count in (1, 4):
        child = start_worker(family, receiver, f"settle.{moment}:{count}")
        assert child.wait() == -signal.SIGKILL, site.log_of(child)[-3000:]
    start_worker(family, receiver)
    audit.wait_for_all(site, within_s=LEASE_S + 10)

    secret, deliveries = look(site)
    times = receiver.check_all(secret)
    assert sorted(job.metadata["subject"] for job in deliveries) == sorted(ids), "one delivery for each end"
    assert {job.state for job in deliveries} == {JobState.COMPLETED}
    assert times.keys() == {job.metadata["webhook_id"] for job in deliveries}
    more = sum(times.values()) - JOBS
    figure(f"{site.kind}: webhooks, workers killed {moment}", f"{JOBS} of {JOBS} told, {more} of them again")


def test_a_worker_killed_while_it_waits_and_while_it_delivers_keeps_id_and_schedule(
    family: Family, site: Site, receiver: Receiver, figure: Figure
) -> None:
    """A crash costs no attempt: what was on its way is sent again by whoever comes next, the rest waits as it did."""
    receiver.answers = itertools.chain([503], itertools.repeat(204))
    audit.submit(site, [{}])
    first = start_worker(family, receiver)
    until("it was refused", lambda: bool(_history(site)), first)
    first.kill()
    second = start_worker(family, receiver)
    receiver.may_answer.clear()
    until("it came again", lambda: len(receiver.received) == 2, second)
    second.kill()
    receiver.may_answer.set()
    start_worker(family, receiver)
    audit.wait_for_all(site, within_s=LEASE_S + 10)

    secret, (delivery,) = look(site)
    assert receiver.check_all(secret) == {delivery.metadata["webhook_id"]: 3}
    assert [entry.outcome for entry in delivery.history] == ["failed", "crashed", "completed"]
    assert (delivery.state, delivery.attempts, delivery.crashes) == (JobState.COMPLETED, 2, 1)
    waited_s = receiver.received[1][0] - receiver.received[0][0]
    listed_s = SCHEDULE.waits_s[0]
    assert listed_s <= waited_s < listed_s * 1.1 + 2.0
    stamps = [int(headers["webhook-timestamp"]) for _, headers, _ in receiver.received]
    assert stamps[1] - stamps[0] >= int(listed_s), "each attempt has its own time"
    figure(
        f"{site.kind}: a delivery, killed twice", f"3 messages of one id, {waited_s:.1f} s after the refusal"
    )


def _history(site: Site) -> Any:
    return [entry for job in look(site)[1] if job.task == TASK for entry in job.history]
