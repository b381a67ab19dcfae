"""Ways to ask for many answers that no estimate counted: a key's tokens per minute, and a model's, are kept by estimates.

A call that was sent and timed out is charged its estimate, so the next call shows what that was.
"""

from typing import Any

import pytest
from attacks.test_key_windows import USER, opened
from server.conftest import play
from server.http.front_stage import Play

__all__ = ["opened", "play"]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TOKENS = 20_000


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"n": 128}),
        (CHAT, {"n": 128.0}),
        (CHAT, {"n": "128"}),
        (CHAT, {"max_tokens": 25_000.0}),
        (CHAT, {"max_completion_tokens": 1, "max_tokens": 25_000}),
        (COMPLETIONS, {"prompt": "x", "max_completion_tokens": 1, "max_tokens": 25_000}),
        (COMPLETIONS, {"prompt": "x", "best_of": 20, "max_tokens": 2000}),
    ],
)
@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_each_answer_that_may_be_given_is_counted(
    play: Play, opened: Any, path: str, fields: dict[str, Any]
) -> None:
    async def scene() -> None:
        terms = {"tokens_per_minute": TOKENS}
        async with opened(terms, latency_s=60, model={"retry": {"max_attempts": 1}}) as client:
            asked = {"model": "m", **({"messages": USER} if path == CHAT else {}), **fields}
            sent = await client.post(path, asked, "X-Headgate-Timeout: 0.2")
            refused = await client.chat("X-Headgate-Timeout: 0.2")
            assert (sent.status, refused.status) == (504, 429), sent.body

    play(scene)


@pytest.mark.parametrize("fields", [{"n": 4}, {"max_tokens": 2000}, {"n": 2.0, "max_tokens": 100}])
@pytest.mark.parametrize("opened", ["sqlite"], indirect=True)
def test_a_usual_call_leaves_room_for_the_next(play: Play, opened: Any, fields: dict[str, Any]) -> None:
    async def scene() -> None:
        async with opened(
            {"tokens_per_minute": TOKENS}, latency_s=60, model={"retry": {"max_attempts": 1}}
        ) as client:
            statuses = [(await client.chat("X-Headgate-Timeout: 0.2", **fields)).status for _ in range(2)]
            assert statuses == [504, 504]

    play(scene)
