"""Callers over HTTP, as any program would be one: they ask, stream, come back when told to, and write down what they heard."""

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from headgate.cli.demo.books import Books, End, Item, Kind
from headgate.cli.demo.plan import CHAT, STREAM_EVERY, TWINS, Plan
from headgate.core.errors import ProviderFailure
from headgate.formats.sse import DONE, Events
from headgate.transport import Endpoint, Limits, Response, Transport, TransportError

COMES_BACK: Final = 6
"""A refused caller asks again so often."""
LONGEST_WAIT_S: Final = 15.0
"""Told to wait longer than that, it goes away."""
LATER_S: Final = 2.0
"""How long after its answer a key is used once more."""
_LIMITS: Final = Limits(connect_s=30.0, idle_s=None, total_s=90.0)


class Told(NamedTuple):
    """One request's answer."""

    status: int
    headers: Mapping[str, str]
    text: str = ""
    answer_id: str = ""

    @property
    def wait_s(self) -> float | None:
        value = self.headers.get("retry-after")
        return None if value is None else float(value)


class Callers:
    """Interactive callers of one gateway."""

    def __init__(self, url: str, transport: Transport, books: Books) -> None:
        self._endpoint = Endpoint(f"{url}/v1/chat/completions", method="POST")
        self._transport = transport
        self._books = books

    async def storm(self, plan: Plan) -> None:
        """Everybody at their moment; returns when the last one has its end."""
        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, moment in enumerate(plan.call_moments(), 1):
                await asyncio.sleep(max(0.0, start + moment - time.monotonic()))
                group.create_task(self._call(number))

    async def trickle(self) -> None:
        """A call now and then, without end."""
        for number in itertools.count(len(self._books.items) + 1):
            await self._call(number)
            await asyncio.sleep(1.0)

    async def _call(self, number: int) -> None:
        kind = Kind.CALL if number % STREAM_EVERY else Kind.STREAM
        await self._ask(self._books.open(f"{kind[:-1]} {number}", kind))

    async def twins(self, plan: Plan) -> None:
        """One key after the other."""
        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, moment in enumerate(plan.key_moments(), 1):
                await asyncio.sleep(max(0.0, start + moment - time.monotonic()))
                group.create_task(self._one_key(number))

    async def _one_key(self, number: int) -> None:
        """Several send the same at once, one more later; the last sends something else under the same key."""
        item = self._books.open(f"key {number}", Kind.TWIN, askers=TWINS + 1)
        key = f"demo-{number}"
        async with asyncio.TaskGroup() as group:
            for _ in range(TWINS):
                group.create_task(self._ask(item, key=key))
        await asyncio.sleep(LATER_S)
        replayed = await self._ask(item, key=key)
        if End.ANSWERED in item.ends[:TWINS] and replayed is not None and not _is_replay(replayed):
            self._books.broken.append(f"{item.name}: asked again later, it was not told from the record")
        if replayed is None:
            return
        other = await self._send({**_body(item), "messages": [_message("something else")]}, key=key)
        if other.status != 409:
            self._books.broken.append(f"{item.name}: another body under it got {other.status}, not 409")

    async def _ask(self, item: Item, *, key: str | None = None) -> Told | None:
        """Until there is an end. Returns the answer, if that is what it was."""
        for _ in range(COMES_BACK):
            item.requests += 1
            began_at = time.monotonic()
            try:
                told = await self._send(_body(item), key=key)
            except ProviderFailure:
                item.ends.append(End.UNHEARD)
                return None
            if told.status == 200:
                if item.kind is not Kind.TWIN:
                    self._books.latencies_s.append(time.monotonic() - began_at)
                item.answer(told.text, told.answer_id)
                return told
            if told.status not in {429, 503}:
                item.ends.append(End.FAILED)
                return None
            if not await self._wait(item, told):
                break
        item.ends.append(End.REFUSED)
        return None

    async def _wait(self, item: Item, told: Told) -> bool:
        """As long as promised. False when that is too long."""
        item.refusals += 1
        if told.wait_s is None:
            self._books.broken.append(f"{item.name}: refused with {told.status} and no Retry-After")
            return False
        self._books.waits_s.append(told.wait_s)
        if told.wait_s > LONGEST_WAIT_S:
            return False
        await asyncio.sleep(told.wait_s)
        return True

    async def _send(self, body: Mapping[str, Any], *, key: str | None) -> Told:
        headers = [(b"content-type", b"application/json"), (b"x-headgate-timeout", b"60")]
        if key is not None:
            headers.append((b"idempotency-key", key.encode()))
        content = msgspec.json.encode(body)
        with await self._transport.send(self._endpoint, content, headers=headers, limits=_LIMITS) as response:
            if response.status == 200 and body["stream"]:
                return await _read_stream(response)
            answer = await response.read()
        if response.status != 200:
            return Told(response.status, response.headers)
        text, answer_id = _read_answer(answer)
        return Told(200, response.headers, text, answer_id)


def _body(item: Item) -> dict[str, Any]:
    return {"model": CHAT, "messages": [_message(item.name)], "stream": item.kind is Kind.STREAM}


def _message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _is_replay(told: Told) -> bool:
    return told.headers.get("idempotent-replayed") == "true"


async def _read_stream(response: Response) -> Told:
    """A stream that fails says so in an event; one that only ends was cut."""
    events, text, answer_id = Events(), "", ""
    async for piece in response.chunks():
        for event in events.feed(piece):
            if event.data == DONE:
                return Told(200, response.headers, text, answer_id)
            if event.failure() is not None:
                return Told(502, response.headers)
            chunk = msgspec.json.decode(event.data)
            answer_id = chunk["id"]
            text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    raise TransportError("the stream ended without [DONE]")


def _read_answer(body: bytes) -> tuple[str, str]:
    answer = msgspec.json.decode(body)
    return answer["choices"][0]["message"]["content"] or "", answer["id"]
