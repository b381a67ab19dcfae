"""The two sides of an outbox in the crash tests: a gateway that takes jobs, and somebody who posts them, to be killed."""

import asyncio
import itertools
import os
import random
from collections.abc import Mapping
from typing import Any, Final

from crash.ledger import Ledger
from server.stage import opened

from headgate.client import AsyncClient, Outbox

STREAMS: Final = 3


async def gateway(*, settings: Mapping[str, Any], ledgers: str) -> None:
    """Takes jobs and runs none."""
    async with opened(settings) as house:
        Ledger(ledgers, "gateway").add(url=house.url)
        await asyncio.Event().wait()


async def poster(*, outbox: str, url: str, ledgers: str) -> None:
    """Adds entries and flushes for ever. Says what it was promised (`added`) only when it is."""
    added = Ledger(ledgers, "added")
    with Outbox(outbox) as box:
        async with AsyncClient(url) as client:
            for number in itertools.count():
                name = f"{os.getpid()}-{number}"
                told = {"name": name, "stream": f"stream {random.randrange(STREAMS)}"}
                entry = box.add("chat", _ask(name), stream=told["stream"], metadata=told)
                added.add(entry=entry.id, **told)
                if random.random() < 0.5:
                    await box.flush(client)


def _ask(name: str) -> dict[str, Any]:
    return {"model": "simulated", "messages": [{"role": "user", "content": name}]}
