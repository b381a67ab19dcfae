"""The official `openai` SDK without a gateway: how it retries, as its source does it (3.49), and a run's callers with it.

`Retry-After` as a date is not modelled; no simulated upstream sends one.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

from headgate.core import events
from headgate.core.answer import Reply, Usage
from headgate.core.call import Call, Lane, Message
from headgate.core.errors import DeadlineExceeded, HeadgateError, ProviderFailure, UpstreamThrottled
from headgate.core.foreign import classify
from headgate.core.ports.clock import Chance
from headgate.core.ports.provider import Provider
from headgate.planner.virtual import World

MAX_RETRIES: Final = 2
FIRST_WAIT_S: Final = 0.5
MAX_WAIT_S: Final = 8.0
JITTER: Final = 0.25
MAX_HINT_S: Final = 120.0
"""A longer `Retry-After` is not waited for: the call fails."""
OK: Final = 200
THROTTLED: Final = 429
_RETRIED: Final = frozenset({408, 409, THROTTLED})


class Response(NamedTuple):
    """What comes back for one attempt. Status 0: the connection broke."""

    status: int
    headers: Mapping[str, str] = {}
    code: str = ""


def hint_s(headers: Mapping[str, str]) -> float | None:
    for name, divisor in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            return float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
    return None


def should_retry(response: Response) -> bool:
    hint = hint_s(response.headers)
    if hint is not None and math.isfinite(hint) and hint > MAX_HINT_S:
        return False
    if (says := response.headers.get("x-should-retry")) in {"true", "false"}:
        return says == "true"
    return response.status == 0 or response.status in _RETRIED or response.status >= 500


def wait_s(response: Response, retries_taken: int, sample: Chance) -> float:
    hint = hint_s(response.headers)
    if hint is not None and math.isfinite(hint) and 0 < hint <= MAX_HINT_S:
        return hint
    return min(FIRST_WAIT_S * 2.0**retries_taken, MAX_WAIT_S) * (1 - JITTER * sample())


async def call(
    send: Callable[[], Awaitable[Response]],
    *,
    max_retries: int,
    sleep: Callable[[float], Awaitable[None]],
    chance: Chance,
) -> Response:
    """Send until there is an answer or a reason to give up; the last response."""
    retries_taken = 0
    while True:
        response = await send()
        if response.status == OK or retries_taken == max_retries or not should_retry(response):
            return response
        await sleep(wait_s(response, retries_taken, chance))
        retries_taken += 1


class SdkAlone:
    """Callers with the SDK before one upstream. They share nothing: each call is retried for itself."""

    def __init__(
        self, provider: Provider, world: World, hear: Callable[[events.Event], None], *, timeout_s: float
    ) -> None:
        self._provider = provider
        self._world = world
        self._hear = hear
        self._timeout_s = timeout_s
        self._ids = count()

    async def complete(
        self, *, model: str, messages: Sequence[Message], lane: Lane, deadline_s: float | None
    ) -> Reply:
        """As the gateway's own, with the SDK's retries."""
        asked = Call(id=f"sdk-{next(self._ids)}", model=model, fields={"messages": messages}, lane=lane)
        try:
            async with asyncio.timeout(self._timeout_s if deadline_s is None else deadline_s):
                response = await call(
                    lambda: self._send(asked),
                    max_retries=MAX_RETRIES,
                    sleep=self._world.clock.sleep,
                    chance=self._world.chance,
                )
        except TimeoutError as error:
            raise DeadlineExceeded(f"{model}: no answer in time") from error
        if response.status == THROTTLED:
            hint = hint_s(response.headers)
            raise UpstreamThrottled(f"{model}: 429", retry_after_s=MAX_WAIT_S if hint is None else hint)
        if response.status != OK:
            raise HeadgateError(f"{model}: {response.status or 'the connection broke'}")
        return Reply(request_id=asked.id, model=model, upstream=model, body=b"", usage=Usage(0, 0))

    async def _send(self, asked: Call) -> Response:
        began_at, failure = self._world.clock.now(), None
        try:
            await self._provider.send(asked)
        except (ProviderFailure, RuntimeError) as error:
            failure = classify(error, now=self._world.clock.utc())
        self._hear(
            events.AttemptEnded(
                request_ids=(asked.id,),
                model=asked.model,
                upstream=asked.model,
                attempt=1,
                duration_ms=(self._world.clock.now() - began_at) * 1000,
                failure=failure,
                usage=None,
            )
        )
        if failure is None:
            return Response(OK)
        hint = failure.retry_after_s
        return Response(failure.status or 0, {} if hint is None else {"retry-after": str(hint)})
