"""Two tenants of one gateway, and what each of them reads there."""

import asyncio
import json
from typing import Any

from server.http.front_stage import Answer
from server.locked_stage import Locked

ENDED = {"completed", "dead_letter", "cancelled", "skipped"}


def bearer(key: str) -> str:
    return f"Authorization: Bearer {key}"


def message_of(answer: Answer) -> str:
    return str(json.loads(answer.body)["error"]["message"])


async def job(gateway: Locked, key: str, **asked: Any) -> dict[str, Any]:
    """Submit a job and wait for its end."""
    answer = await gateway.post("/v1/jobs", asked, bearer(key))
    assert answer.status == 202, answer.body
    return await ended(gateway, key, json.loads(answer.body)["id"])


async def ended(gateway: Locked, key: str, job_id: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            told = json.loads((await gateway.get(f"/v1/jobs/{job_id}?wait=5", bearer(key))).body)
            if told["state"] in ENDED:
                return dict(told)
