"""What an attempt does at the provider, and whether its result is any good."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from headgate.core.embeddings import EmbeddingRequest, Embeddings, estimate_embedding_usage
from headgate.core.errors import CheckBroken, ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.messages import UNREASONED, Answer, Chunk, Request, Usage, estimate_usage
from headgate.core.ports.provider import ItemAnswer, Provider
from headgate.core.sse import Opening

logger = logging.getLogger("headgate")
T = TypeVar("T")

CHUNK_BYTES: Final = 128
"""About what a chunk without content takes to keep."""
Check = Callable[[Answer], object]
"""Raises ValueError (or returns False) when an answer is not usable; the answer is then generated anew."""


class Work(Protocol[T]):
    """One provider call. `flaw` says why a result cannot be used, `usage` what it cost."""

    stays_open: bool
    """The attempt goes on after `call` returns; whoever reads on says how it ended."""

    def call(self, provider: Provider) -> Awaitable[T]: ...

    def flaw(self, result: T) -> str | None: ...

    def usage(self, result: T) -> Usage | None: ...


class Complete:
    """One request, one whole answer. After each answer that cannot be used, the next of `changes` sets other parameters."""

    stays_open = False
    __slots__ = ("_changes", "_check", "_first_token_s", "_request")

    def __init__(
        self,
        request: Request,
        check: Check | None = None,
        first_token_s: float | None = None,
        changes: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._request = request
        self._check = check
        self._first_token_s = first_token_s
        self._changes = iter(changes)

    async def call(self, provider: Provider) -> Answer:
        return _an_answer(await in_time(provider.complete(self._request), self._first_token_s))

    def flaw(self, result: Answer) -> str | None:
        flaw = flaw_of(result, self._check)
        if flaw is not None and (change := next(self._changes, None)):
            params = {**self._request.params, **change}
            self._request = msgspec.structs.replace(self._request, params=params)
        return flaw

    def usage(self, result: Answer) -> Usage:
        return result.usage or estimate_usage(self._request, result.content or "")


async def in_time(answer: Awaitable[T], first_token_s: float | None) -> T:
    """A whole answer; `first_token_s` bounds it only when set."""
    if first_token_s is None:
        return await answer
    scope = asyncio.timeout(first_token_s)
    try:
        async with scope:
            return await answer
    except TimeoutError:
        if not scope.expired():
            raise
        raise timed_out(f"no answer within first_token_s ({first_token_s:g} s)") from None


def _an_answer(answer: object) -> Answer:
    if not isinstance(answer, Answer):
        raise TypeError(f"the provider's complete must return an Answer, not {type(answer).__name__}")
    return answer


def _item_answers(items: Sequence[Any]) -> Sequence[ItemAnswer]:
    for item in items:
        if not isinstance(item, ItemAnswer) or not isinstance(item.outcome, Answer | Failure):
            raise TypeError("the provider's complete_many must return ItemAnswers")
    return items


def flaw_of(answer: Answer, check: Check | None) -> str | None:
    """Why an answer cannot be used; a check that breaks raises `CheckBroken`, which blames nobody else."""
    if answer.blank:
        return "the answer is blank"
    if check is None:
        return None
    try:
        verdict = check(answer)
    except (ValueError, msgspec.MsgspecError) as error:
        return str(error) or type(error).__name__
    except Exception as error:
        raise CheckBroken(f"the check raised {type(error).__name__}: {error}") from error
    if isinstance(verdict, Coroutine):
        verdict.close()
        raise CheckBroken("the check is async; a check must answer at once")
    return "the check returned False" if verdict is False else None


class CompleteMany:
    """Several requests in one call; each item fares alone, so the call itself has no flaw."""

    stays_open = False
    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests

    async def call(self, provider: Provider) -> Sequence[ItemAnswer]:
        items = _item_answers(await provider.complete_many(self._requests))
        failures = [item.outcome for item in items if isinstance(item.outcome, Failure)]
        kinds = {failure.kind for failure in failures}
        # When all fail alike it is the call that failed: one retry, one fallback, one mark against the upstream.
        if len(failures) == len(self._requests) and len(kinds) == 1 and FailureKind.REJECTED not in kinds:
            raise ProviderFailure(failures[0])
        return items

    def flaw(self, result: Sequence[ItemAnswer]) -> str | None:  # noqa: ARG002 - the protocol's shape
        return None

    def usage(self, result: Sequence[ItemAnswer]) -> Usage | None:
        known = [
            item.outcome.usage for item in result if isinstance(item.outcome, Answer) and item.outcome.usage
        ]
        if not known:
            return None
        return Usage(sum(usage.input_tokens for usage in known), sum(usage.output_tokens for usage in known))


class Embed:
    """One request, one vector for each of its texts."""

    stays_open = False
    __slots__ = ("_first_token_s", "_request")

    def __init__(self, request: EmbeddingRequest, first_token_s: float | None = None) -> None:
        self._request = request
        self._first_token_s = first_token_s

    async def call(self, provider: Provider) -> Embeddings:
        return _embeddings(await in_time(provider.embed(self._request), self._first_token_s))

    def flaw(self, result: Embeddings) -> str | None:
        asked, answered = len(self._request.input), len(result.vectors)
        if answered != asked:
            return f"vectors in the answer: {answered}, texts in the request: {asked}"
        empty = next((index for index, vector in enumerate(result.vectors) if not vector), None)
        return None if empty is None else f"vector {empty} is empty"

    def usage(self, result: Embeddings) -> Usage:
        return result.usage or estimate_embedding_usage(self._request)


def _embeddings(answer: object) -> Embeddings:
    if not isinstance(answer, Embeddings):
        raise TypeError(f"the provider's embed must return Embeddings, not {type(answer).__name__}")
    if not _is_list(answer.vectors) or not all(map(_is_list, answer.vectors)):
        raise TypeError("the provider's embed must return a list of vectors, each a list of numbers")
    return answer


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


class Opened(Generic[T]):
    """A stream whose first content has arrived: `waiting` chunks are yet to be handed out."""

    __slots__ = ("chunks", "waiting")

    def __init__(self, chunks: AsyncIterator[T], waiting: list[T]) -> None:
        self.chunks = chunks
        self.waiting = waiting


class OpenStream:
    """One request, a stream opened up to its first content: until then everything may still be retried."""

    stays_open = True
    __slots__ = ("_first_token_s", "_request")

    def __init__(self, request: Request, first_token_s: float) -> None:
        self._request = request
        self._first_token_s = first_token_s

    async def call(self, provider: Provider) -> Opened[Chunk]:
        chunks = provider.stream(self._request)
        try:
            return Opened(chunks, await self._first_content(chunks))
        except BaseException:
            await close_stream(chunks)
            raise

    async def _first_content(self, chunks: AsyncIterator[Chunk]) -> list[Chunk]:
        seen: list[Chunk] = []
        opening = Opening()
        scope = asyncio.timeout(self._first_token_s)
        try:
            async with scope:
                async for chunk in chunks:
                    if chunk.has_content:
                        return [*seen, chunk]
                    if chunk.finish_reason is not None or chunk.usage is not None:
                        seen.append(chunk)
                        opening.take(CHUNK_BYTES)
        except TimeoutError:
            if not scope.expired():
                raise
            raise timed_out(f"no content within first_token_s ({self._first_token_s:g} s)") from None
        return seen

    def flaw(self, result: Opened[Chunk]) -> str | None:
        return None if any(map(_says_enough, result.waiting)) else "the stream ended without content"

    def usage(self, result: Opened[Chunk]) -> Usage | None:  # noqa: ARG002 - known only when the stream has ended
        return None


def _says_enough(chunk: Chunk) -> bool:
    """Content, or why there is none."""
    return chunk.has_content or chunk.finish_reason not in UNREASONED


async def close_stream(chunks: AsyncIterator[Any]) -> None:
    """Stop the provider's work; generators and our own iterators both close this way."""
    closing = getattr(chunks, "aclose", None)
    if closing is None:
        return
    try:
        await closing()
    except Exception:
        # The call is over one way or another; how it ended is already known.
        logger.exception("a provider's stream could not be closed")


async def next_chunk(chunks: AsyncIterator[T], idle_s: float) -> T:
    """The next chunk, or a timeout failure after `idle_s` of silence. StopAsyncIteration passes through."""
    scope = asyncio.timeout(idle_s)
    try:
        async with scope:
            return await anext(chunks)
    except TimeoutError:
        if not scope.expired():
            raise
        raise timed_out(f"nothing came for idle_s ({idle_s:g} s)") from None


def timed_out(message: str) -> ProviderFailure:
    return ProviderFailure(
        Failure(kind=FailureKind.TRANSIENT, message=message, code="timeout", timed_out=True)
    )
