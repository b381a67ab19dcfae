"""An answer is in the events exactly once: as the end of a call, or, where the request was not a call of a model, by itself."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from server.http.front_stage import Answer, post
from server.stage import House, opened
from server.upstreams import CHAT, ask, look, one_model, sent, until

from headgate import AppCall, AppReply, AppRoute, RateLimited, wiring
from headgate.core.access import Action
from headgate.core.events import HttpAnswered, Responded
from headgate.gateway import Gateway
from headgate.server.access import Caller, Headers, OpenAccess


def reported(house: House) -> list[tuple[str, str | None]]:
    return [
        (event.request_id, event.error)
        for event in house.events
        if isinstance(event, Responded | HttpAnswered)
    ]


def named(answer: Answer) -> str:
    return answer.headers["x-request-id"]


async def _breaks(call: AppCall) -> AppReply:
    raise RuntimeError("as asked")


def _routes(_: Gateway) -> Sequence[AppRoute]:
    return [AppRoute(method="POST", path="/v1/breaks", handle=_breaks)]


class _Limited(OpenAccess):
    def admit(self, headers: Headers, action: Action) -> Caller:
        raise RateLimited("its requests of this minute are used up", retry_after_s=5)


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.provokes_internal_error
def test_a_route_that_breaks() -> None:
    async def main() -> None:
        async with opened({}, mount=_routes) as house:
            answer = await sent(house, post(b"", "/v1/breaks"))
            assert (answer.status, answer.code) == (500, "internal")
            assert reported(house) == [(named(answer), "internal")]

    asyncio.run(main())


@pytest.mark.parametrize("path", [CHAT, "/v1/jobs"])
def test_a_key_that_has_used_up_its_limits(path: str) -> None:
    async def main() -> None:
        async with opened(one_model({"provider": "simulated"}), access=_Limited()) as house:
            answer = await sent(house, post(b"{}", path))
            assert (answer.status, answer.code) == (429, "rate_limited")
            assert reported(house) == [(named(answer), "rate_limited")]

    asyncio.run(main())


def test_a_backlog_that_is_full() -> None:
    async def main() -> None:
        async with opened({"jobs": {"max_pending": 1}}) as house:
            job = b'{"task": "chat", "input": {"model": "simulated", "messages": [{"role": "user", "content": "Hi"}]}}'
            assert (await sent(house, post(job, "/v1/jobs"))).status == 202
            answer = await sent(house, post(job, "/v1/jobs"))
            assert answer.status == 429
            assert [error for _, error in reported(house)] == [None, "queue_full"]

    asyncio.run(main())


def test_a_call_that_a_gate_refuses_is_reported_as_the_end_of_that_call() -> None:
    async def main() -> None:
        full = {"provider": "simulated", "outcome": "stall", "slots": 1, "depth": 1}
        async with opened(one_model(full)) as house:
            crowd = [asyncio.create_task(ask(house)) for _ in range(2)]
            await until(lambda: house.gateway.status().rt_queue == 1)
            answer = await ask(house)
            assert (answer.status, answer.code) == (429, "queue_full")
            assert reported(house) == [(named(answer), "queue_full")]
            for one in crowd:
                one.cancel()
            await asyncio.gather(*crowd, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.provokes_internal_error
def test_a_call_that_breaks_inside_is_reported_as_the_end_of_that_call() -> None:
    def build(model: str | None, options: Any, given: Any) -> Any:
        provider = wiring.PROVIDERS["simulated"].build(model, options, given)
        provider.send = _miscounted(provider.send)  # type: ignore[method-assign]
        return provider

    async def main() -> None:
        broken = replace(wiring.PROVIDERS["simulated"], build=build)
        settings = one_model({"provider": "broken", "tokens_per_minute": 1000})
        async with opened(settings, providers={**wiring.PROVIDERS, "broken": broken}) as house:
            answer = await ask(house)
            assert (answer.status, answer.code) == (500, "internal")
            assert reported(house) == [(named(answer), "internal")]

    asyncio.run(main())


def _miscounted(send: Any) -> Any:
    """An unexpected exception in the gateway itself: a usage without all of its fields."""

    async def sending(call: Any) -> Any:
        answer = await send(call)
        usage = SimpleNamespace(input_tokens=1, output_tokens=2, total_tokens=3)
        return msgspec.structs.replace(answer, usage=usage)

    return sending


def test_a_caller_s_own_mistakes() -> None:
    async def main() -> None:
        async with opened({}) as house:
            assert (await sent(house, post(b"{", CHAT))).status == 400
            assert (await ask(house, model="nowhere")).status == 404
            assert (await look(house, "/v1/jobs/job_0")).status == 404
            assert [error for _, error in reported(house)] == ["invalid_request", "not_found", "not_found"]

    asyncio.run(main())
