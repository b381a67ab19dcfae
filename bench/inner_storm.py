"""A storm of calls inside one process, on any clock, and its books: what was asked, and how each call ended."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.core import events
from headgate.core.call import Lane
from headgate.core.errors import CallFailed, DeadlineExceeded, HeadgateError, Refused
from headgate.gateway import Gateway

MODEL = "storm"
BURST_SHARE = 0.25
"""This share of the calls comes within a moment, to fill the queue."""

SETTINGS: Mapping[str, Any] = {
    "models": {
        MODEL: {
            "upstreams": [
                {
                    "provider": "simulated",
                    "model": "throttled",
                    "slots": 12,
                    "reserved_slots": 2,
                    "depth": 40,
                    "latency_s": 0.15,
                    "latency": "lognormal",
                    "failures": {"throttled": 0.02, "transient": 0.06, "invalid_output": 0.02},
                    "retry_after_s": 0.3,
                    "outage": [[2.5, 3.5]],
                },
                {
                    "provider": "simulated",
                    "model": "flaky",
                    "slots": 8,
                    "depth": 40,
                    "latency_s": 0.2,
                    "latency": "exponential",
                    "failures": {"transient": 0.1},
                },
            ],
            "retry": {"max_attempts": 3, "first_wait_s": 0.2},
            "timeouts": {"total_s": 20},
        }
    },
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How many calls within how many seconds, from which seed."""

    calls: int
    seed: int
    seconds: float = 10.0


@dataclass
class Books:
    """What happened, counted apart: by the callers, and by the events the gateway told."""

    planned: int
    ends: Counter[str] = field(default_factory=Counter)
    wrong_answers: int = 0
    told: Counter[str] = field(default_factory=Counter)

    @property
    def ended(self) -> int:
        return sum(self.ends.values())

    def hear(self, event: events.Event) -> None:
        """A listener like any other."""
        match event:
            case events.Responded(request_id=request_id) | events.Cancelled(request_id=request_id):
                self.told[request_id] += 1
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The books' balance: every call ended once, was told once, and got its own answer."""

    lost: int
    doubled: int
    misrouted: int

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.misrouted)


def judge(books: Books) -> Verdict:
    return Verdict(
        lost=books.planned - books.ended + max(0, books.planned - len(books.told)),
        doubled=sum(count - 1 for count in books.told.values()),
        misrouted=books.wrong_answers,
    )


async def blow(gateway: Gateway, plan: Plan, books: Books) -> None:
    """Ask at random moments, in both lanes, some in a hurry and some changing their mind."""
    chance = random.Random(plan.seed)
    burst = int(plan.calls * BURST_SHARE)
    moments = [chance.uniform(0, plan.seconds) for _ in range(plan.calls - burst)]
    moments += [chance.uniform(0.55, 0.58) * plan.seconds for _ in range(burst)]
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.TaskGroup() as group:
        for number, moment in enumerate(sorted(moments)):
            await asyncio.sleep(max(0.0, start + moment - loop.time()))
            group.create_task(_caller(gateway, books, number, chance.random()))


async def _caller(gateway: Gateway, books: Books, number: int, hurry: float) -> None:
    text = f"question {number}"
    call = asyncio.create_task(
        gateway.complete(
            model=MODEL,
            messages=[{"role": "user", "content": text}],
            lane=Lane.BATCH if number % 2 else Lane.INTERACTIVE,
            request_id=f"storm-{number}",
            deadline_s=1.5 if hurry < 0.1 else 15.0,
        )
    )
    if hurry > 0.97:
        await asyncio.sleep(0.1)
        call.cancel()
    books.ends[await _end(call, books, text)] += 1


async def _end(call: "asyncio.Task[Any]", books: Books, text: str) -> str:
    try:
        reply = await call
    except asyncio.CancelledError:
        return "cancelled"
    except Refused:
        return "refused"
    except DeadlineExceeded:
        return "expired"
    except CallFailed:
        return "failed"
    except HeadgateError:
        return "error"
    if f"{text} " not in f"{reply.content} ":
        books.wrong_answers += 1
    return "answered"
