"""Callers who come together before a paced and throttled upstream, over HTTP on uvloop as `serve` runs it: none gets a 500."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import CHAT, COMPLETIONS, ask, one_model

CALLERS = 150
QUICK_RETRIES = {"first_wait_s": 0.005, "longest_wait_s": 0.02}
QUICK = {"provider": "simulated", "latency_s": 0.001, "depth": 0}


@pytest.mark.parametrize(
    ("upstream", "model"),
    [
        ({"interval_s": 0.002}, {}),
        ({"failures": {"throttled": 0.1}, "retry_after_s": 0.005}, {}),
        ({"failures": {"throttled": 0.1}, "interval_s": 0.002}, {}),
        ({"many_inputs": 10}, {"gather": {"size": 10, "wait_ms": 0}}),
    ],
    ids=["paced", "throttled with a hint", "throttled and paced", "gathered at once"],
)
def test_no_caller_of_a_paced_throttled_or_gathering_model_gets_a_500(
    play: Play, upstream: dict[str, Any], model: dict[str, Any]
) -> None:
    async def scene() -> None:
        async with opened(one_model({**QUICK, **upstream}, retry=QUICK_RETRIES, **model)) as house:
            ways = ((CHAT, False), (CHAT, True), (COMPLETIONS, False))
            answers = await asyncio.gather(
                *(
                    ask(house, path, stream=stream)
                    for path, stream in (ways[number % len(ways)] for number in range(CALLERS))
                )
            )
            assert Counter(answer.status for answer in answers) == {200: CALLERS}
            assert house.all_free

    play(scene)
