"""The simulated provider: takes each call through connecting, waiting and its fate."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Final, NoReturn

import msgspec

from headgate.core.answer import Answer, Chunk, Usage
from headgate.core.call import Call, Format
from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure
from headgate.core.ports.clock import Chance, Clock
from headgate.core.ports.provider import ItemAnswer
from headgate.formats import chat, embeddings
from headgate.formats.chat import ChatRequest
from headgate.formats.embeddings import EmbeddingRequest
from headgate.providers.simulated.answers import (
    Answers,
    broken_message,
    connect_timed_out,
    count_usage,
    failure_of,
    finish_reason,
    pieces,
)
from headgate.providers.simulated.counts import CallCounts
from headgate.providers.simulated.fates import Fates
from headgate.providers.simulated.limits import Limits
from headgate.providers.simulated.options import SimulatedOptions
from headgate.providers.simulated.script import Outcome, ScriptedOutcome
from headgate.providers.simulated.vectors import count_tokens, encoded, read_dimensions, spoil

_UNAVAILABLE: Final = ScriptedOutcome(outcome=Outcome.TRANSIENT)
_TOO_MANY: Final = ScriptedOutcome(outcome=Outcome.REJECTED)
_NUMBERS_AT_ONCE: Final = 20_000
"""Of vectors, before other calls go on. They take 4 ms."""


class SimulatedProvider(CallCounts):
    """A provider that only needs a clock and chance. The same seed and the same calls give the same story."""

    formats = frozenset({Format.CHAT, Format.EMBEDDINGS})
    reads = True

    def __init__(
        self,
        options: SimulatedOptions,
        *,
        model: str,
        clock: Clock,
        chance: Chance,
        connect_timeout_s: float | None = None,
    ) -> None:
        super().__init__(clock)
        self.options = options
        self.model = model
        self.max_calls = options.many_inputs
        self._chance = chance
        self._connect_timeout_s = connect_timeout_s
        self._created = clock.now()
        self._fates = Fates(options, chance)
        self._limits = Limits(options, self._created)
        self._being_refused = 0
        """Calls that wait for their refusal: they are not in flight to a limit."""
        self._answers = Answers(options.answers, options.answers_by_pattern, options.seed)
        self._hanging: set[asyncio.Future[None]] = set()

    async def send(self, call: Call) -> Answer:
        if call.format is Format.EMBEDDINGS:
            return await self._embed(call)
        request = chat.read_request(call)
        with self._counted:
            fate = self._fates.deal(self._see(call.id))
            words = self._answers.text(request, fate)
            await self._wait(self._fates.latency_s(fate), self._tokens(request, words))
            await self._end(fate)
            return self._answer(call, request, fate, words)

    async def stream(self, call: Call) -> AsyncIterator[bytes]:
        request = chat.read_request(call)
        writer = chat.StreamWriter(call)
        self._arrive()
        finished = False
        try:
            fate = self._fates.deal(self._see(call.id))
            words = self._answers.text(request, fate)
            await self._wait(self._fates.first_token_s(fate), self._tokens(request, words))
            for index, piece in enumerate(self._pieces(fate, words)):
                if index:
                    await self._pause(self.options.chunk_gap_s)
                yield writer.write(Chunk(text=piece))
            await self._end(fate)
            # A reader that stops at the finish reason or at [DONE] has the whole answer and cancels nothing.
            finished = True
            self.in_flight -= 1
            last = Chunk(finish_reason=finish_reason(fate), usage=self._usage(request, words))
            yield writer.write(last) + writer.end()
        except (asyncio.CancelledError, GeneratorExit):
            if not finished:
                self.cancelled += 1
            raise
        finally:
            if not finished:
                self.in_flight -= 1

    async def send_many(self, calls: Sequence[Call]) -> Sequence[ItemAnswer]:
        requests = [chat.read_request(call) for call in calls]
        with self._counted:
            return await self._answer_many(calls, requests)

    async def aclose(self) -> None:
        """Nothing to close."""

    async def _embed(self, call: Call) -> Answer:
        request = embeddings.read_request(call)
        tokens = count_tokens(request.texts)
        with self._counted:
            fate = self._fates.deal(self._see(call.id))
            await self._wait(self._fates.latency_s(fate), tokens)
            await self._end(fate)
            vectors = spoil(await self._vectors(request), fate.outcome)
        usage = Usage(tokens, 0) if self.options.report_usage else None
        return embeddings.write_answer(call, vectors, usage)

    async def _answer_many(
        self, calls: Sequence[Call], requests: Sequence[ChatRequest]
    ) -> Sequence[ItemAnswer]:
        fates = [self._fates.deal(self._see(call.id)) for call in calls]
        words = [self._answers.text(request, fate) for request, fate in zip(requests, fates, strict=True)]
        # One call ends when its slowest item does.
        tokens = sum(self._tokens(request, said) for request, said in zip(requests, words, strict=True))
        await self._wait(max(map(self._fates.latency_s, fates), default=0.0), tokens)
        await self._end_whole(fates)
        items = [
            ItemAnswer(
                call.id, self._failure(fate) if fate.fails else self._answer(call, request, fate, said)
            )
            for call, request, fate, said in zip(calls, requests, fates, words, strict=True)
        ]
        if self.options.shuffle_many:
            self._shuffle(items)
        return items

    async def _end_whole(self, fates: Sequence[ScriptedOutcome]) -> None:
        if len(fates) > self.max_calls:
            raise self._error(_TOO_MANY)
        for fate in fates:
            if self.options.fail_whole or fate.outcome is Outcome.STALL:
                await self._end(fate)

    def _shuffle(self, items: list[ItemAnswer]) -> None:
        for last in range(len(items) - 1, 0, -1):
            other = int(self._chance() * (last + 1))
            items[last], items[other] = items[other], items[last]

    async def _wait(self, latency_s: float, tokens: int) -> None:
        """Connect and wait for the answer to begin. In an outage a quick 503 is all there is, above a limit a 429."""
        options = self.options
        if options.connect_latency_s:
            await self._connect(options.connect_latency_s)
        if options.outage and self._in_outage():
            await self._refuse(_UNAVAILABLE)
        if self._limits.active:
            others = self.in_flight - self._being_refused - 1
            wait_s = self._limits.take(tokens, self._clock.now(), others)
            if wait_s is not None:
                told_s = options.retry_after_s if options.retry_after_s is not None else wait_s or None
                await self._refuse(ScriptedOutcome(outcome=Outcome.THROTTLED, retry_after_s=told_s))
        if latency_s:
            await self._clock.sleep(latency_s)

    async def _refuse(self, fate: ScriptedOutcome) -> NoReturn:
        self._being_refused += 1
        try:
            await self._pause(self.options.failure_latency_s or 0.0)
        finally:
            self._being_refused -= 1
        raise self._error(fate)

    async def _connect(self, latency_s: float) -> None:
        limit_s = self._connect_timeout_s
        if limit_s is not None and latency_s > limit_s:
            await self._pause(limit_s)
            raise ProviderFailure(connect_timed_out(self.model, limit_s))
        if latency_s == math.inf:
            await self._hang()
        await self._clock.sleep(latency_s)

    def _in_outage(self) -> bool:
        age_s = self._clock.now() - self._created
        return any(start_s <= age_s < end_s for start_s, end_s in self.options.outage)

    async def _pause(self, seconds: float) -> None:
        if seconds:
            await self._clock.sleep(seconds)

    async def _end(self, fate: ScriptedOutcome) -> None:
        """Fail or hang, if that is the fate. What breaks off and does not fail, hangs."""
        if fate.fails:
            raise self._error(fate)
        if fate.breaks_off:
            await self._hang()

    async def _hang(self) -> None:
        """Wait for what never comes. Not on a timer: virtual time would run ahead to its end."""
        never = asyncio.get_running_loop().create_future()
        # A task that waits for a future nobody else holds may be collected as garbage.
        self._hanging.add(never)
        try:
            await never
        finally:
            self._hanging.discard(never)

    def _pieces(self, fate: ScriptedOutcome, words: str) -> list[str]:
        parts = pieces(words, self.options.chunks)
        return parts[: self.options.cut_after_chunks] if fate.breaks_off else parts

    def _answer(self, call: Call, request: ChatRequest, fate: ScriptedOutcome, words: str) -> Answer:
        usage = self._usage(request, words)
        return chat.write_answer(call, content=words, finish_reason=finish_reason(fate), usage=usage)

    async def _vectors(self, request: EmbeddingRequest) -> Sequence[msgspec.Raw]:
        """Computed and encoded a few at a time."""
        dimensions = read_dimensions(request, model=self.model, now=self._clock.utc())
        vectors, numbers = list[msgspec.Raw](), 0
        for text in request.texts:
            vectors.append(encoded(text, seed=self.options.seed, dimensions=dimensions))
            numbers += dimensions
            if numbers >= _NUMBERS_AT_ONCE:
                numbers = 0
                await asyncio.sleep(0)
        return vectors

    def _tokens(self, request: ChatRequest, words: str) -> int:
        """The size of the call, where a limit needs it."""
        if not self._limits.active:
            return 0
        return count_usage(request.messages, words, self.options.output_tokens).total_tokens

    def _usage(self, request: ChatRequest, words: str) -> Usage | None:
        options = self.options
        return count_usage(request.messages, words, options.output_tokens) if options.report_usage else None

    def _failure(self, fate: ScriptedOutcome) -> Failure:
        wait_s = self.options.retry_after_s
        return failure_of(fate, model=self.model, throttle_retry_after_s=wait_s, now=self._clock.utc())

    def _error(self, fate: ScriptedOutcome) -> Exception:
        if fate.outcome is Outcome.BROKEN:
            return RuntimeError(broken_message(self.model))
        return ProviderFailure(self._failure(fate))
