"""The bookmarks design's retry rules. Its keys, queue and dead letters are in `test_002_bookmarks_jobs`."""

import random

import httpx
import pytest
from stage import USER, set_stage

from headgate import RetryPolicy, classify
from headgate.planner import virtual
from headgate.planner.virtual import World


def _answer(status: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/v1/bookmarks")
    return httpx.HTTPStatusError(
        "x", request=request, response=httpx.Response(status, headers=headers, request=request)
    )


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 429])
def test_5xx_408_and_429_are_retried(status: int) -> None:
    assert RetryPolicy.web().should_retry(_answer(status), 0)


@pytest.mark.parametrize(
    "error", [httpx.ConnectTimeout("x"), httpx.ConnectError("no such host"), httpx.ReadError("reset")]
)
def test_network_errors_are_retried(error: Exception) -> None:
    assert RetryPolicy.web().should_retry(error, 0)


@pytest.mark.parametrize("status", [400, 401, 403, 409])
def test_other_4xx_are_not_retried(status: int) -> None:
    assert not RetryPolicy.web().should_retry(_answer(status), 0)


def test_three_attempts_and_no_more() -> None:
    assert [RetryPolicy.web().should_retry(_answer(503), attempt) for attempt in range(3)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("attempt", "base_s"), [(0, 1.0), (1, 2.0), (2, 4.0)])
def test_the_waits_are_1_2_4_seconds_with_up_to_a_tenth_on_top(attempt: int, base_s: float) -> None:
    random.seed(2)
    waits = [RetryPolicy.web().get_delay(attempt) for _ in range(300)]
    assert base_s <= min(waits)
    assert max(waits) <= 1.1 * base_s


def test_retry_after_is_respected() -> None:
    assert classify(_answer(429, {"Retry-After": "17"})).retry_after_s == 17

    async def main(world: World) -> list[float]:
        stage = set_stage(world, {"latency_s": 0.0, "script": [{"status": 429, "retry_after_s": 17}]})
        await stage.gateway.complete(model="m", messages=USER)
        return list(stage.provider.starts)

    first, second = virtual.run(main)
    assert second - first >= 17
