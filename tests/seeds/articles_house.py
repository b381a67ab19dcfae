"""The article summariser behind a real port."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
from server.http.front_stage import Answer, post
from server.stage import House, opened
from server.upstreams import look, sent

SUMMARIZE: Final = "/api/v1/summarize"
QUEUE: Final = "/api/v1/summarize/queue"
CONTENT: Final = "The council has met on Monday and has decided to mend the old bridge within the year. " * 3
QUICK: Final = {"retry": {"first_wait_s": 0.01, "jitter": "none"}}
Scene = Callable[[House], Awaitable[None]]


class Articles:
    """Runs scenes with the summariser mounted on the model `m`."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def play(self, upstream: dict[str, Any], scene: Scene, **settings: Any) -> None:
        listed = {"models": {"m": {"upstreams": [{"provider": "simulated", "latency_s": 0, **upstream}]}}}
        apps = {"articles": {"model": "m", **settings.pop("options", {})}}
        work = settings.pop("work", True)

        async def served() -> None:
            given = {**listed, "apps": apps, "jobs": QUICK, **settings}
            async with asyncio.timeout(60), opened(given, work=work) as house:
                await scene(house)

        asyncio.run(served())


async def ask(house: House, path: str, *headers: str, **fields: Any) -> Answer:
    body = {"article_id": "a1", "content": CONTENT, **fields}
    return await sent(house, post(json.dumps(body).encode(), path, *headers))


async def queued(house: House, **fields: Any) -> Any:
    answer = await ask(house, QUEUE, **fields)
    assert answer.status == 202, answer.body
    return json.loads(answer.body)


async def ended(house: House, job_id: str) -> Any:
    """The status at the job's end."""
    await look(house, f"/v1/jobs/{job_id}?wait=20")
    return json.loads((await look(house, f"{SUMMARIZE}/status/{job_id}")).body)
