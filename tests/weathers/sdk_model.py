"""How the official `openai` SDK retries, as its source does it (3.49): attempts, waits, jitter, what it obeys.

`Retry-After` as a date is not modelled; no weather sends one.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from headgate.core.ports.clock import Chance

MAX_RETRIES: Final = 2
FIRST_WAIT_S: Final = 0.5
MAX_WAIT_S: Final = 8.0
JITTER: Final = 0.25
MAX_HINT_S: Final = 120.0
"""A longer `Retry-After` is not waited for: the call fails."""
_RETRIED: Final = frozenset({408, 409, 429})


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
        if response.status == 200 or retries_taken == max_retries or not should_retry(response):
            return response
        await sleep(wait_s(response, retries_taken, chance))
        retries_taken += 1
