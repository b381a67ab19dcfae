"""A provider in OpenAI's format on loopback that misbehaves as ordered, and keeps its own count of what reaches it."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from headgate.cli.demo.books import Counts
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.messages import Request, Usage
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id
from headgate.providers.simulated import SimulatedOptions, SimulatedProvider
from headgate.server.http import Exchange, Server

HOTTEST: Final = 2.0
"""A request with a higher temperature is refused with 400."""
_JSON: Final = b"content-type: application/json\r\n"
_DOWN: Final = Failure(kind=FailureKind.TRANSIENT, status=503, message="down for a while (simulated)")
_TOO_HOT: Final = Failure(
    kind=FailureKind.REJECTED, status=400, message=f"temperature must be at most {HOTTEST:g} (simulated)"
)


class Asked(msgspec.Struct):
    """What it reads of a request."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool = False
    temperature: float = 1.0


class SimulatedUpstream:
    """One server. `down` makes it answer everything with 503."""

    def __init__(self, name: str, models: Mapping[str, SimulatedOptions], *, seed: int) -> None:
        chance = random.Random(f"{name} {seed}").random
        clock = SystemClock()
        self.name = name
        self.down = False
        self.counts = Counts()
        self._models = {
            model: SimulatedProvider(options, model=model, clock=clock, chance=chance)
            for model, options in models.items()
        }
        self._server = Server(self._serve)

    async def start(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{await self._server.start('127.0.0.1', 0)}/v1"

    async def aclose(self) -> None:
        await self._server.aclose()

    async def _serve(self, exchange: Exchange) -> None:
        # Whoever leaves, a killed worker included, wants no answer any more.
        exchange.on_disconnect(exchange.task.cancel)
        asked = msgspec.json.decode(await _body(exchange), type=Asked)
        question = str(asked.messages[-1]["content"])
        self.counts.arrived[question] += 1
        self.counts.in_flight += 1
        try:
            await self._answer(exchange, asked, question)
        except ProviderFailure as error:
            if error.failure is _DOWN or error.failure.kind is FailureKind.THROTTLED:
                self.counts.free[question] += 1
            await self._refuse(exchange, error.failure)
        except asyncio.CancelledError:
            self.counts.left += 1
            raise
        finally:
            self.counts.in_flight -= 1

    async def _answer(self, exchange: Exchange, asked: Asked, question: str) -> None:
        if self.down:
            raise ProviderFailure(_DOWN)
        if asked.temperature > HOTTEST:
            raise ProviderFailure(_TOO_HOT)
        provider = self._models[asked.model]
        request = Request(id=random_id(), model=asked.model, messages=asked.messages)
        said = await (_stream if asked.stream else _whole)(exchange, provider, request)
        if said and exchange.answered:
            self.counts.answered[question] += 1
        else:
            self.counts.failed += 1

    async def _refuse(self, exchange: Exchange, failure: Failure) -> None:
        status = failure.status or 503
        if failure.kind is FailureKind.THROTTLED:
            self.counts.throttled += 1
        else:
            self.counts.failed += 1
        lines = _JSON
        if failure.retry_after_s is not None:
            lines += b"retry-after: %d\r\n" % failure.retry_after_s
        error = {"message": failure.message, "type": failure.kind, "code": failure.code}
        await exchange.answer(status, lines, msgspec.json.encode({"error": error}))


async def _body(exchange: Exchange) -> bytes:
    body = await exchange.piece()
    while exchange.more:
        body += await exchange.piece()
    return body


async def _whole(exchange: Exchange, provider: SimulatedProvider, request: Request) -> str:
    """Returns what it said."""
    answer = await provider.complete(request)
    message = {"role": "assistant", "content": answer.content}
    choice = {"index": 0, "message": message, "finish_reason": answer.finish_reason}
    body = {**_frame(request, "chat.completion"), "choices": [choice], "usage": _usage(answer.usage)}
    await exchange.answer(200, _JSON, msgspec.json.encode(body))
    return answer.content or ""


async def _stream(exchange: Exchange, provider: SimulatedProvider, request: Request) -> str:
    """Nothing is sent before the first piece: a failure until then is an answer of its own."""
    said = ""
    async for chunk in _chunks(provider, request):
        if not exchange.begun:
            await exchange.begin(200, [(b"content-type", b"text/event-stream")])
        said += chunk.pop("text")
        await exchange.write(b"data: %b\n\n" % msgspec.json.encode(chunk))
    await exchange.write(b"data: [DONE]\n\n", more=False)
    return said


async def _chunks(provider: SimulatedProvider, request: Request) -> AsyncIterator[dict[str, Any]]:
    frame = _frame(request, "chat.completion.chunk")
    async for chunk in provider.stream(request):
        choice = {"index": 0, "delta": {"content": chunk.text}, "finish_reason": chunk.finish_reason}
        yield {**frame, "choices": [choice], "usage": _usage(chunk.usage), "text": chunk.text}


def _frame(request: Request, kind: str) -> dict[str, Any]:
    return {"id": request.id, "object": kind, "created": 0, "model": request.model}


def _usage(usage: Usage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }
