"""The newsletter judge's Bedrock design: its retries, spacing and parallelism, on the gateway itself."""

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError  # type: ignore[import-untyped]
from stage import USER, set_stage

import headgate
from headgate import RetryPolicy
from headgate.core.errors import HeadgateError
from headgate.planner import virtual
from headgate.planner.virtual import World


def _client_error(code: str, status: int = 400) -> ClientError:
    response = {"Error": {"Code": code, "Message": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "Converse")


@pytest.mark.parametrize(("attempt", "base_s"), [(0, 2.0), (1, 4.0), (2, 8.0), (3, 16.0)])
def test_the_wait_series_is_2_4_8_16_with_up_to_half_on_top_and_never_over_20(
    attempt: int, base_s: float
) -> None:
    """The original applied its cap before the jitter: 20 s meant 30 s."""
    random.seed(0)
    waits = [RetryPolicy.bedrock().get_delay(attempt) for _ in range(300)]
    assert min(waits) >= base_s
    assert max(waits) <= min(1.5 * base_s, 20.0)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ThrottlingException", 429),
        ("ServiceUnavailableException", 503),
        ("InternalServerException", 500),
        ("ModelTimeoutException", 408),
        ("ModelNotReadyException", 429),
    ],
)
def test_throttling_and_service_errors_are_retried(code: str, status: int) -> None:
    assert RetryPolicy.bedrock().should_retry(_client_error(code, status), 0)


@pytest.mark.parametrize(
    "code", ["ValidationException", "AccessDeniedException", "UnknownOperationException"]
)
def test_wrong_requests_and_missing_rights_are_not_retried(code: str) -> None:
    assert not RetryPolicy.bedrock().should_retry(_client_error(code), 0)


def test_network_errors_are_retried_too() -> None:
    """With the SDK's own retries switched off, the original gave connection errors none at all."""
    assert RetryPolicy.bedrock().should_retry(ConnectTimeoutError(endpoint_url="x"), 0)


def test_other_errors_are_not_retried() -> None:
    assert not RetryPolicy.bedrock().should_retry(ZeroDivisionError(), 0)


def test_four_retries_are_five_calls_and_then_the_error_goes_out() -> None:
    async def main(world: World) -> int:
        throttled = {"status": 400, "code": "ThrottlingException"}
        stage = set_stage(world, {"latency_s": 0.1, "script": [throttled] * 9}, retry="bedrock")
        with pytest.raises(headgate.UpstreamThrottled):
            await stage.gateway.complete(model="m", messages=USER)
        return stage.provider.calls

    assert virtual.run(main) == 5


def test_a_judgement_that_is_no_known_label_is_asked_for_again() -> None:
    """Valid JSON with an unknown label once fell straight through to IGNORE."""

    def known(answer: Any) -> bool:
        return answer.content in {"ACT_NOW", "THINK", "FYI", "IGNORE"}

    async def main(world: World) -> tuple[str | None, int]:
        stage = set_stage(world, {"answers": ["URGENT", "ACT_NOW"]}, retry="bedrock")
        reply = await stage.gateway.complete(model="m", messages=USER, check=known)
        return reply.content, stage.provider.calls

    assert virtual.run(main) == ("ACT_NOW", 2)


def test_requests_are_spaced_globally_and_never_in_bursts() -> None:
    """The original slept inside each slot, so that all slots slept and fired together."""

    async def main(world: World) -> list[float]:
        stage = set_stage(world, {"slots": 5, "depth": 0, "interval_s": 2.5, "latency_s": 5.0})
        await asyncio.gather(*(stage.gateway.complete(model="m", messages=USER) for _ in range(20)))
        return list(stage.provider.starts)

    assert all(later - earlier >= 2.5 for earlier, later in pairwise(virtual.run(main)))


def test_no_more_than_the_configured_calls_run_in_parallel() -> None:
    async def main(world: World) -> int:
        stage = set_stage(world, {"slots": 5, "depth": 0, "latency_s": 5.0})
        await asyncio.gather(*(stage.gateway.complete(model="m", messages=USER) for _ in range(40)))
        return stage.provider.most_in_flight

    assert virtual.run(main) == 5


def test_a_wrong_model_is_loud_for_every_item_and_stops_calling() -> None:
    """It once turned every article into a quiet IGNORE."""

    async def main(world: World) -> tuple[int, set[type]]:
        wrong = {"status": 400, "code": "ValidationException"}
        stage = set_stage(world, {"slots": 1, "latency_s": 0.1, "script": [wrong] * 50}, retry="bedrock")
        results = await stage.gateway.complete_many([{"messages": USER}] * 20, model="m")
        assert all(isinstance(result, HeadgateError) for result in results)
        return stage.provider.calls, {type(result) for result in results[3:]}

    calls, errors = virtual.run(main)
    assert calls == 3
    assert errors == {headgate.UpstreamMisconfigured}
