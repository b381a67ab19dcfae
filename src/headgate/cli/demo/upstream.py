"""A provider in OpenAI's format on loopback that misbehaves as ordered, and keeps its own count of what reaches it."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.cli.demo.books import Counts
from headgate.core.call import Call
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.formats.chat import END
from headgate.formats.sse import FirstContent
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


class SimulatedUpstream:
    """One server. `down` makes it answer everything with 503."""

    def __init__(self, name: str, models: Mapping[str, SimulatedOptions], *, seed: int) -> None:
        chance = random.Random(f"{name} {seed}").random
        self._clock = clock = SystemClock()
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
        # A client that has left, such as a killed worker, needs no answer.
        exchange.on_disconnect(exchange.task.cancel)
        fields = msgspec.json.decode(await _body(exchange), type=dict[str, Any])
        question = str(fields["messages"][-1]["content"])
        self.counts.arrived[question] += 1
        self.counts.in_flight += 1
        try:
            await self._answer(exchange, fields, question)
        except ProviderFailure as error:
            if error.failure is _DOWN or error.failure.kind is FailureKind.THROTTLED:
                self.counts.free[question] += 1
            await self._refuse(exchange, error.failure)
        except asyncio.CancelledError:
            self.counts.left += 1
            raise
        finally:
            self.counts.in_flight -= 1

    async def _answer(self, exchange: Exchange, fields: dict[str, Any], question: str) -> None:
        if self.down:
            raise ProviderFailure(_DOWN)
        if fields.get("temperature", 1.0) > HOTTEST:
            raise ProviderFailure(_TOO_HOT)
        call = Call(
            id=random_id(),
            model=fields.pop("model"),
            stream=fields.pop("stream", False),
            fields=fields,
            created=self._clock.utc().timestamp(),
        )
        has_content = await (_stream if call.stream else _whole)(exchange, self._models[call.model], call)
        if has_content and exchange.answered:
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


async def _whole(exchange: Exchange, provider: SimulatedProvider, call: Call) -> bool:
    """Returns whether it has content."""
    answer = await provider.send(call)
    await exchange.answer(200, _JSON, answer.body)
    return not answer.blank


async def _stream(exchange: Exchange, provider: SimulatedProvider, call: Call) -> bool:
    """Nothing is sent before the first piece: a failure until then is an answer of its own."""
    first, has_content = FirstContent(), False
    async for piece in provider.stream(call):
        if not exchange.begun:
            await exchange.begin(200, [(b"content-type", b"text/event-stream")])
        has_content = has_content or first.feed(piece)
        await exchange.write(piece, more=not piece.endswith(END))
    return has_content
