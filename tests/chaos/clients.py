"""Clients: they submit, call, stream, read and cancel at any gateway, ask again at others, and note every answer."""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from chaos.books import Answer, Asked, Books
from chaos.key_points import complete
from chaos.nodes import Node
from server.http.front_stage import Wire

CHAT: Final = "/v1/chat/completions"
JOBS: Final = "/v1/jobs"
CALLS: Final = {Asked.CALL, Asked.STREAM, Asked.OPEN_CALL}
PATIENCE_S: Final = 90.0
"""Longer than any answer may take: what lasts longer is found by the audit, not by this."""
AGAIN: Final = {None, 200, 409, 429, 500, 502, 503, 504}
"""What a client asks again after; a 200 among them is a stream that broke."""


@dataclass(frozen=True)
class Wish:
    """Something asked for under a key, byte for byte the same at every try."""

    asked: Asked
    key: str
    prompts: tuple[str, ...]
    body: bytes

    def request(self, deadline_s: float) -> bytes:
        key = f"Idempotency-Key: {self.key}"
        if self.asked is Asked.SUBMIT:
            return _request("POST", JOBS, self.body, key)
        return _request("POST", CHAT, self.body, key, f"X-Headgate-Timeout: {deadline_s:g}")


def _request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def call(key: str, *, stream: bool = False) -> Wish:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": key}],
        **({"stream": True} if stream else {}),
    }
    return Wish(Asked.STREAM if stream else Asked.CALL, key, (key,), json.dumps(body).encode())


def jobs(key: str, count: int = 1) -> Wish:
    """One job, or a list of them under the one key."""
    prompts = tuple(f"{key} {number}" for number in range(count))
    listed = [
        {
            "task": "chat",
            "input": {"model": "m", "messages": [{"role": "user", "content": prompt}]},
            "metadata": {"name": key},
        }
        for prompt in prompts
    ]
    return Wish(Asked.SUBMIT, key, prompts, json.dumps(listed if count > 1 else listed[0]).encode())


@dataclass
class Clients:
    """All of them, with one ledger."""

    books: Books
    gateways: Sequence[Node]
    chance: random.Random
    call_s: float = 1.0
    """How long a call takes at the provider."""
    wishes: list[Wish] = field(default_factory=list)
    job_ids: list[str] = field(default_factory=list)
    stopped: bool = False
    give_up_at: float = float("inf")
    """From then on no client asks again: what is not answered by now is a finding."""

    @property
    def deadline_s(self) -> float:
        """What a call asks for: enough for another gateway to take its key over and make the call."""
        return self.call_s + 2 * self.books.lease_s + 8.0

    # ---- Single requests -------------------------------------------------------------------------------

    async def ask(self, wish: Wish, gateway: Node, *, leave_after_s: float | None = None) -> Answer | None:
        """One try. None when no process listens there just now."""
        request = wish.request(self.deadline_s)
        return await self._send(wish.asked, gateway, wish.key, request, wish.prompts, leave_after_s)

    async def insist(
        self, wish: Wish, first: Node | None = None, *, within_s: float = float("inf")
    ) -> Answer | None:
        """Again and again, each time at another gateway, until there is an answer; the last one when time is up."""
        until = time.time() + within_s
        turn = self.gateways.index(first) if first else self.chance.randrange(len(self.gateways))
        last: Answer | None = None
        while time.time() < min(until, self.give_up_at):
            answer = await self.ask(wish, self.gateways[turn % len(self.gateways)])
            last = answer or last
            if answer is not None and (complete(answer) or answer.status not in AGAIN):
                break
            turn += 1
            await asyncio.sleep(0.2)
        return last

    async def read(self, job_id: str, gateway: Node) -> Answer | None:
        return await self._send(Asked.STATUS, gateway, job_id, _request("GET", f"{JOBS}/{job_id}"))

    async def cancel(self, job_id: str, gateway: Node) -> Answer | None:
        return await self._send(Asked.CANCEL, gateway, job_id, _request("POST", f"{JOBS}/{job_id}/cancel"))

    async def call_openly(self, name: str, gateway: Node) -> Answer | None:
        """Without a key: it needs no store."""
        return await self._send(Asked.OPEN_CALL, gateway, name, _request("POST", CHAT, call(name).body))

    # ---- A crowd, until the test stops it ----------------------------------------------------------------

    async def crowd(self, name: str, list_size: int) -> None:
        """One of many clients: one wish after the other, each seen through."""
        number = 0
        while not self.stopped:
            number += 1
            await self._wish(f"{name}-{number}", list_size)
            await asyncio.sleep(self.chance.uniform(0.02, 0.2))

    async def _wish(self, key: str, list_size: int) -> None:
        gateway = self.chance.choice(self.gateways)
        kind = self.chance.random()
        if kind < 0.45:
            wish = jobs(key, list_size if kind < 0.08 else 1)
        elif kind < 0.55:
            if self.job_ids:
                await self.read(self.chance.choice(self.job_ids), gateway)
            return
        elif kind < 0.58:
            if self.job_ids:
                await self.cancel(self.chance.choice(self.job_ids[-10:]), gateway)
            return
        elif kind < 0.62:
            await self.call_openly(key, gateway)
            return
        else:
            wish = call(key, stream=kind > 0.8)
        self.wishes.append(wish)
        if wish.asked is not Asked.SUBMIT and self.chance.random() < 0.15:
            await self.ask(wish, gateway, leave_after_s=self.chance.random() * 0.3)
        twin = self.insist(wish) if self.chance.random() < 0.1 else asyncio.sleep(0)
        answer, _ = await asyncio.gather(self.insist(wish, gateway), twin)
        if answer is not None and answer.status == 202:
            self.job_ids += answer.job_ids

    # ---- After healing ------------------------------------------------------------------------------------

    async def ask_everywhere(self) -> None:
        """Every wish and every job at every gateway: what they say now must agree with all they ever said."""
        places = asyncio.Semaphore(12)

        first = {answer.key: answer.gateway for answer in reversed(self.books.answers)}

        async def ask(wish: Wish) -> None:
            async with places:
                # First at others than the first one, which knows best what became of it.
                for gateway in sorted(self.gateways, key=lambda one: one.name == first.get(wish.key)):
                    await self.ask(wish, gateway)

        async def read(job_id: str) -> None:
            async with places:
                for gateway in self.gateways:
                    await self.read(job_id, gateway)

        await asyncio.gather(*map(ask, self.wishes))
        await asyncio.gather(*map(read, self.job_ids))

    # ---- How it is done -----------------------------------------------------------------------------------

    async def _send(
        self,
        asked: Asked,
        gateway: Node,
        key: str,
        request: bytes,
        prompts: tuple[str, ...] = (),
        leave_after_s: float | None = None,
    ) -> Answer | None:
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        sent_at = time.time()
        try:
            wire = Wire(*await asyncio.open_connection(host, int(port or 0)))
        except OSError:
            # Between two processes. Nothing was asked, so nothing can be answered.
            return None
        received = _Received()
        try:
            async with asyncio.timeout(PATIENCE_S if leave_after_s is None else leave_after_s):
                await wire.send(request)
                await received.read(wire)
        except TimeoutError:
            received.left = leave_after_s is not None
        except (OSError, asyncio.IncompleteReadError):
            # What has arrived by then is the answer; the audit judges it.
            pass
        finally:
            wire.reset()
        answer = Answer(
            asked=asked,
            gateway=gateway.name,
            key=key,
            sent_at=sent_at,
            at=time.time(),
            status=received.status,
            headers=received.headers,
            body=received.body,
            whole=received.whole,
            left=received.left,
            prompts=prompts,
            may_take_s=self.deadline_s if asked in CALLS else 0.0,
        )
        self.books.answers.append(answer)
        return answer


class _Received:
    """As much of an answer as has arrived."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.whole = False
        self.left = False

    async def read(self, wire: Wire) -> None:
        self.status, headers = await wire.head()
        self.headers = {name.lower(): value for name, value in headers.items()}
        if "content-length" in self.headers:
            self.body = await wire.reader.readexactly(int(self.headers["content-length"]))
        else:
            async for piece in wire.chunks():
                self.body += piece
        self.whole = True
