"""Alerts and metrics count every request of a caller once, over HTTP or in the library, whatever becomes of it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from observe.metrics_stage import Page, metrics_of
from server.http.front_stage import post
from server.stage import House, opened
from server.upstreams import CHAT, ask, look, one_model, sent, until

from headgate import AppCall, AppReply, AppRoute, AppStream
from headgate.core.alert_rules import Rule
from headgate.core.outcomes import Outcome
from headgate.gateway import Gateway
from headgate.observe.alerts import Counts

HELLO = b'{"task": "chat", "input": {"model": "simulated", "messages": [{"role": "user", "content": "Hi"}]}}'


@dataclass
class Counted:
    """A served gateway with all that counts its requests."""

    house: House
    counts: Counts
    page: Callable[[], bytes]

    def share(self, rule: Rule) -> float | None:
        readings = self.counts.readings(0.0, newly_dead=0, oldest_due_s=None)
        return next((reading.value for reading in readings if reading.rule == rule), None)

    def outcomes(self) -> Counter[Outcome]:
        """As the alerts count; the metrics must agree."""
        page, alerts = Page(self.page()), self.counts._requests.counts(0.0)
        metrics = {one: page("headgate_caller_requests_total", outcome=one.value) for one in Outcome}
        assert metrics == {one: alerts[one] for one in Outcome}
        return alerts

    async def expect(self, **outcomes: int) -> None:
        """A request counts when its answer is sent, which may be a moment after the client has read it."""
        await until(lambda: sum(self.outcomes().values()) >= sum(outcomes.values()))
        assert self.outcomes() == outcomes


@asynccontextmanager
async def counted(settings: dict[str, Any], **options: Any) -> AsyncIterator[Counted]:
    async with opened(settings, **options) as house:
        counts = Counts(lambda: 0.0, time_answers=False)
        house.gateway.listen(lambda event: counts.hearers.get(type(event), lambda _: None)(event))
        metrics = metrics_of(house.gateway)
        yield Counted(house, counts, metrics.exposition)
        await metrics.aclose()


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_accepted_submissions_are_requests_as_the_rejected_ones_are() -> None:
    async def main() -> None:
        async with counted({"jobs": {"max_pending": 30}}) as seen:
            answers = [await sent(seen.house, post(HELLO, "/v1/jobs")) for _ in range(50)]
            assert [answer.status for answer in answers] == [202] * 30 + [429] * 20
            await seen.expect(ok=30, refused=20)
            assert seen.share(Rule.REJECTIONS) == pytest.approx(0.4)

    asyncio.run(main())


def test_every_answer_to_a_call_of_a_model_counts_once() -> None:
    """The key's own call, its replays whole and streamed, one that becomes a job, and one without a key."""

    async def main() -> None:
        async with counted(one_model({"provider": "simulated", "model": "instant"})) as seen:
            assert (await ask(seen.house)).status == 200
            assert (await ask(seen.house, stream=True)).status == 200
            for stream, key in ((False, "a"), (True, "b")):
                for _ in range(3):
                    answer = await ask(seen.house, CHAT, f"Idempotency-Key: {key}", stream=stream)
                    assert answer.status == 200
            assert (await ask(seen.house, CHAT, "Prefer: respond-async")).status == 202
            await seen.expect(ok=9)

    asyncio.run(main())


def test_streams_that_share_one_call_count_once_each() -> None:
    async def main() -> None:
        slow = {"provider": "simulated", "latency_s": 0.5}
        async with counted(one_model(slow)) as seen:
            crowd = (ask(seen.house, CHAT, "Idempotency-Key: a", stream=True) for _ in range(3))
            assert [answer.status for answer in await asyncio.gather(*crowd)] == [200] * 3
            await seen.expect(ok=3)

    asyncio.run(main())


def test_mistakes_of_callers_are_requests_and_nothing_worse() -> None:
    async def main() -> None:
        async with counted({}) as seen:
            assert (await sent(seen.house, post(b"{", CHAT))).status == 400
            assert (await ask(seen.house, model="nowhere")).status == 404
            assert (await look(seen.house, CHAT)).status == 405
            assert (await look(seen.house, "/v1/jobs/job_0")).status == 404
            assert (await look(seen.house, "/v1/nowhere")).status == 404
            assert (await look(seen.house, "/v1/models")).status == 200
            await seen.expect(other=5, ok=1)

    asyncio.run(main())


def test_probes_scrapes_and_the_dashboard_are_no_requests_of_callers() -> None:
    async def main() -> None:
        async with counted({}) as seen:
            for path in (
                "/health",
                "/health/ready",
                "/api/v1/health",
                "/metrics",
                "/queue/status",
                "/models",
            ):
                assert (await look(seen.house, path)).status
            assert (await look(seen.house, "/v1/models")).status == 200
            await seen.expect(ok=1)

    asyncio.run(main())


def _thrice(gateway: Gateway) -> Sequence[AppRoute]:
    """An application that calls a model three times for each request: the first call fails, as asked."""

    async def call() -> None:
        await gateway.complete(model="m", messages=[{"role": "user", "content": "hello"}])

    async def answer(asked: AppCall) -> AppReply:
        for _ in range(3):
            await call()
        return AppReply(value=b"{}")

    async def pieces() -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        await call()

    async def stream(asked: AppCall) -> AppStream:
        return AppStream(pieces=pieces())

    return [
        AppRoute(method="POST", path="/v1/thrice", handle=answer),
        AppRoute(method="POST", path="/v1/streamed", handle=stream),
    ]


def test_a_request_to_an_application_counts_once_however_many_calls_it_makes() -> None:
    async def main() -> None:
        listed = {
            "provider": "simulated",
            "model": "instant",
            "script": [200, 200, 200, 503],
            "breaker": False,
        }
        settings = one_model(listed, retry={"max_attempts": 1})
        async with counted(settings, mount=_thrice) as seen:
            assert (await sent(seen.house, post(b"", "/v1/thrice"))).status == 200
            await seen.expect(ok=1)
            assert (await sent(seen.house, post(b"", "/v1/thrice"))).status == 502
            await seen.expect(ok=1, failed=1)

    asyncio.run(main())


def test_a_stream_of_an_application_that_fails_in_the_middle_is_a_failed_request() -> None:
    async def main() -> None:
        listed = {"provider": "simulated", "model": "instant", "script": [503], "breaker": False}
        settings = one_model(listed, retry={"max_attempts": 1})
        async with counted(settings, mount=_thrice) as seen:
            assert (await sent(seen.house, post(b"", "/v1/streamed"))).status == 200
            await seen.expect(failed=1)

    asyncio.run(main())
