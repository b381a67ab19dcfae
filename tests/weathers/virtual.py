"""The weathers in virtual time: the SDK's model alone, and before the real gateway's gates and dispatcher."""

import asyncio
import enum
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final

from headgate import wiring
from headgate.core.answer import Answer, Usage
from headgate.core.call import Call, Format, Message
from headgate.core.errors import HeadgateError, ProviderFailure
from headgate.core.failures import Failure, FailureKind, from_answer
from headgate.formats import chat
from headgate.gateway import Gateway
from headgate.machine.context import note_headers
from headgate.planner import virtual
from headgate.planner.sdk import MAX_RETRIES, Response, call
from headgate.planner.virtual import World
from headgate.server.errors import read_error
from headgate.wiring.providers import ProviderKind, Surroundings
from weathers.kinds import OK, WAY_THERE_S, Calm, Verdict
from weathers.offer import ANSWERED, Ask, Outcome, offer
from weathers.table import PATIENCE_S, Arrival, Weather

ORACLE_SLOTS: Final = 64
ORACLE_STEP_S: Final = 0.02
CHARS_PER_SIZE: Final = 1600


class Way(enum.StrEnum):
    """How a caller reaches the upstream."""

    SDK = "sdk"
    HEADGATE = "headgate"
    RETRIES = "headgate, 2 retries"
    ORACLE = "oracle"
    """Knows when the upstream accepts a call. Virtual time only."""


RETRIES_OF: Final[Mapping[Way, int]] = {Way.SDK: MAX_RETRIES, Way.HEADGATE: 0, Way.RETRIES: MAX_RETRIES}


def play(weather: Weather, way: Way, seed: int) -> tuple[Outcome, list[Calm]]:
    """One run from its seed, and the upstreams as it leaves them."""

    async def main(world: World) -> tuple[Outcome, list[Calm]]:
        sky = weather.sky(seed)
        match way:
            case Way.SDK:
                ask = _alone(sky[0], world)
            case Way.ORACLE:
                ask = _Oracle(sky, weather.slots, world).ask
            case Way.HEADGATE | Way.RETRIES:
                ask = _through(_gateway(weather, sky, world), RETRIES_OF[way], world)
        outcome = await offer(weather.arrivals(seed), ask, world.clock)
        outcome.calls = sum(len(upstream.log) for upstream in sky)
        return outcome, sky

    return virtual.run(main, seed=seed)


def messages_for(arrival: Arrival) -> list[Message]:
    """The call's size is at the beginning of its prompt; a prompt of another size than usual is as long as it says."""
    padding = "word " * int(arrival.size * CHARS_PER_SIZE / 5) if arrival.size != 1.0 else ""
    return [{"role": "user", "content": f"size={arrival.size:.4f} {padding}"}]


async def reach(upstream: Calm, size: float, world: World, begin: float = 0.0) -> Verdict:
    """One call to an upstream of this weather, from the way there to its end."""
    await world.clock.sleep(world.chance() * WAY_THERE_S)
    verdict = upstream.arrive(world.clock.now() - begin, size)
    try:
        await world.clock.sleep(verdict.after_s)
    finally:
        upstream.leave(verdict)
    return verdict


def _alone(upstream: Calm, world: World) -> Ask:
    async def ask(arrival: Arrival) -> str:
        async def send() -> Response:
            verdict = await reach(upstream, arrival.size, world)
            return Response(0 if verdict.cut else verdict.status, verdict.headers)

        return await _as_the_sdk(send, MAX_RETRIES, world)

    return ask


def _through(gateway: Gateway, max_retries: int, world: World) -> Ask:
    async def ask(arrival: Arrival) -> str:
        messages = messages_for(arrival)

        async def send() -> Response:
            try:
                await gateway.complete(model="m", messages=messages, deadline_s=PATIENCE_S)
            except HeadgateError as error:
                error.__traceback__ = None
                failed = read_error(error)
                headers = {name.decode(): value.decode() for name, value in failed.headers()}
                return Response(failed.status, headers, failed.code)
            return Response(OK)

        return await _as_the_sdk(send, max_retries, world)

    return ask


async def _as_the_sdk(send: Callable[[], Awaitable[Response]], max_retries: int, world: World) -> str:
    response = await call(send, max_retries=max_retries, sleep=world.clock.sleep, chance=world.chance)
    return ANSWERED if response.status == OK else f"{response.status} {response.code}".strip()


def _gateway(weather: Weather, sky: Sequence[Calm], world: World) -> Gateway:
    """Real but for its providers, which stand in for `openai`, so that all defaults are those of a hosted API."""

    def build(_model: str | None, options: Mapping[str, Any], _given: Surroundings) -> "WeatherProvider":
        return WeatherProvider(sky[int(options["place"])], world)

    providers = {**wiring.PROVIDERS, "openai": ProviderKind(build, lambda _model, _options: None)}
    upstreams = [
        {
            "provider": "openai",
            "model": f"m{place}",
            "place": place,
            **({} if slots is None else {"slots": slots}),
        }
        for place, slots in enumerate(weather.slots)
    ]
    settings = wiring.read_settings(
        {"models": {"m": {**weather.settings, "upstreams": upstreams}}}, env={}, providers=providers
    )
    ids = count()
    return wiring.build(
        settings,
        clock=world.clock,
        chance=world.chance,
        new_id=lambda: f"request-{next(ids)}",
        providers=providers,
    )


class WeatherProvider:
    """An upstream of the weather as a provider: one attempt per call. Whole answers only."""

    formats = frozenset({Format.CHAT})
    reads = True

    def __init__(self, upstream: Calm, world: World) -> None:
        self._upstream = upstream
        self._world = world

    async def send(self, asked: Call) -> Answer:
        prompt = str(chat.read_request(asked).messages[0]["content"])
        size = float(prompt.partition(" ")[0].removeprefix("size="))
        verdict = await reach(self._upstream, size, self._world)
        note_headers([(name.encode(), value.encode()) for name, value in verdict.headers.items()])
        if verdict.cut:
            raise ProviderFailure(Failure(kind=FailureKind.TRANSIENT, code="cut"))
        if verdict.status != OK:
            now = self._world.clock.utc()
            raise ProviderFailure(from_answer(verdict.status, verdict.headers, now=now))
        usage = Usage(round(400 * size), 10)
        return chat.write_answer(asked, content="An answer.", finish_reason="stop", usage=usage)

    def stream(self, _asked: Call) -> AsyncIterator[bytes]:
        raise NotImplementedError("weathers in virtual time answer whole")

    async def aclose(self) -> None:
        """Nothing to close."""


class _Oracle:
    """First come, first served; a call starts when an upstream accepts it. What is refused costs nothing."""

    def __init__(self, sky: Sequence[Calm], slots: Sequence[int | None], world: World) -> None:
        self._sky = sky
        self._free = [ORACLE_SLOTS if free is None else free for free in slots]
        self._world = world
        self._line: deque[tuple[float, asyncio.Future[tuple[int, Verdict]]]] = deque()
        self._serving: asyncio.Task[None] | None = None

    async def ask(self, arrival: Arrival) -> str:
        turn: asyncio.Future[tuple[int, Verdict]] = asyncio.get_running_loop().create_future()
        self._line.append((arrival.size, turn))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        place, verdict = await turn
        try:
            await self._world.clock.sleep(verdict.after_s)
        finally:
            self._sky[place].leave(verdict)
            self._free[place] += 1
        return ANSWERED

    async def _serve(self) -> None:
        while self._line:
            size, turn = self._line[0]
            if turn.done():
                self._line.popleft()  # Its caller has gone.
            elif (accepted := self._accepted(size)) is not None:
                self._line.popleft()
                turn.set_result(accepted)
            else:
                await self._world.clock.sleep(ORACLE_STEP_S)

    def _accepted(self, size: float) -> tuple[int, Verdict] | None:
        for place, upstream in enumerate(self._sky):
            if not self._free[place]:
                continue
            verdict = upstream.arrive(self._world.clock.now(), size)
            if verdict.status == OK and not verdict.cut:
                self._free[place] -= 1
                return place, verdict
            upstream.leave(verdict)
            upstream.log.pop()
        return None
