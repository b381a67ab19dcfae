"""Summaries at once, whole or streamed. A refusal comes before any byte; what was made is kept for the guard."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

import headgate
from headgate.apps.articles.chunking import is_long
from headgate.apps.articles.contracts import SUMMARY
from headgate.apps.articles.delivery import Delivery, Say
from headgate.apps.articles.options import Options
from headgate.apps.articles.repetition import parameters
from headgate.apps.articles.shapes import ARTICLES, LEAST_CHARS, Draft, Summarize, Summarized, lane_of
from headgate.apps.articles.slot import SlotWriter
from headgate.apps.articles.writing import BLANK, summarise, unusable

logger = logging.getLogger("headgate")
LOOK_EVERY_CHARS = 400
"""How much of a stream goes out before it is looked at again."""


class Now:
    """`POST /api/v1/summarize`."""

    def __init__(self, gateway: headgate.Gateway, options: Options) -> None:
        self._gateway = gateway
        self._options = options

    async def summarize(self, call: headgate.AppCall) -> headgate.AppReply | headgate.AppStream:
        asked: Summarize = call.body
        call.check_model(self._options.model)
        if len(asked.content.strip()) < LEAST_CHARS:
            raise headgate.InvalidRequest(
                f"content must have at least {LEAST_CHARS} characters besides blanks", param="content"
            )
        if not asked.stream:
            draft, duration_ms = await self._timed(call, self._write(call))
            return headgate.AppReply(value=_told(asked, draft, duration_ms))
        if is_long(asked.content):
            return await self._stream_whole(call)
        return await self._stream(call)

    async def _write(self, call: headgate.AppCall) -> Draft:
        async with self._writer(call) as writer:
            return await summarise(call.body.content, writer.write)

    async def _stream_whole(self, call: headgate.AppCall) -> headgate.AppStream:
        """A long article is streamed when all its parts are read: until then there is only the sign of life."""
        writer = self._writer(call)

        async def produce(say: Say) -> Summarized:
            async def write() -> Draft:
                async with writer:
                    return await summarise(call.body.content, writer.write)

            draft, duration_ms = await self._timed(call, write())
            await say(draft.summary)
            return _told(call.body, draft, duration_ms)

        return await _begun(produce, lambda: writer.held)

    async def _stream(self, call: headgate.AppCall) -> headgate.AppStream:
        stream = self._gateway.stream(
            model=self._options.model,
            messages=SUMMARY.messages(call.body.content),
            lane=lane_of(call.body.priority),
            deadline_s=self._timeout_s(call),
            tenant=call.tenant,
            **parameters(self._options.temperature, 0),
        )

        async def produce(say: Say) -> Summarized:
            try:
                draft, duration_ms = await self._timed(call, _copied(stream, say, self._options.model))
            finally:
                # Who leaves in the middle has used what came until then.
                call.used(stream.spent.total_tokens)
            return _told(call.body, draft, duration_ms)

        return await _begun(produce, lambda: stream.attempts > 0)

    def _writer(self, call: headgate.AppCall) -> SlotWriter:
        lane = lane_of(call.body.priority)
        return SlotWriter(
            self._gateway,
            self._options,
            lane=lane,
            tenant=call.tenant,
            timeout_s=self._timeout_s(call),
            used=call.used,
        )

    def _timeout_s(self, call: headgate.AppCall) -> float:
        """The operator's bound, or less if the caller says so."""
        return min(self._options.timeout_s, call.deadline_s or self._options.timeout_s)

    async def _timed(self, call: headgate.AppCall, writing: Awaitable[Draft]) -> tuple[Draft, int]:
        """What was written, kept, and how long it took."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        draft = await writing
        duration_ms = round((loop.time() - started) * 1000)
        await self._keep(call, draft)
        return draft, duration_ms

    async def _keep(self, call: headgate.AppCall, draft: Draft) -> None:
        """It is paid for and somebody waits: a database that is away or full does not take it from them."""
        article_id = call.body.article_id
        try:
            await self._gateway.records.put(
                ARTICLES, article_id, msgspec.to_builtins(draft), tenant=call.tenant, bounded=True
            )
        except (headgate.StoreUnavailable, headgate.QuotaExceeded) as error:
            logger.warning("the summary of article %s was told but not kept: %s", article_id, error)


async def _begun(
    produce: Callable[[Say], Awaitable[Summarized]], granted: Callable[[], bool]
) -> headgate.AppStream:
    delivery = Delivery(produce)
    await delivery.begin(granted)
    return headgate.AppStream(pieces=delivery.pieces(), close=delivery.close)


async def _copied(stream: headgate.ReplyStream, say: Say, model: str) -> Draft:
    """What is said cannot be taken back: a stream that goes round in circles ends with an error."""
    text, looked_at = "", 0
    async with stream:
        async for chunk in stream:
            text += chunk.text
            if chunk.text:
                await say(chunk.text)
            if len(text) >= looked_at + LOOK_EVERY_CHARS:
                looked_at = len(text)
                _check(text, stream.attempts)
    _check(text, stream.attempts)
    usage = stream.spent
    return Draft(
        summary=text.strip(),
        model=model,
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        prompt=SUMMARY.name,
    )


def _check(text: str, attempts: int) -> None:
    if flaw := SUMMARY.flaw(text.strip()) if text.strip() else BLANK:
        raise unusable(flaw, attempts=attempts)


def _told(asked: Summarize, draft: Draft, duration_ms: int) -> Summarized:
    return Summarized(
        article_id=asked.article_id,
        summary=draft.summary,
        model=draft.model,
        prompt_tokens=draft.prompt_tokens,
        completion_tokens=draft.completion_tokens,
        total_duration_ms=duration_ms,
    )
