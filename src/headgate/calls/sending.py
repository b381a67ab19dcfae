"""What one attempt does at its provider: one answer, a stream up to its first content, or many answers at once.

A call in a format that the provider does not take goes through chat.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

import msgspec

from headgate.calls.call import Check, RoutedCall
from headgate.calls.deadlines import alarm_at
from headgate.core.answer import Answer, Usage
from headgate.core.call import CHARS_PER_TOKEN, Call, Format, input_tokens
from headgate.core.errors import CheckBroken, ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.ports.provider import ItemAnswer, ManyAtOnce, Provider, no_embeddings
from headgate.formats import completions
from headgate.formats.sse import DONE, FirstContent, cut_short

logger = logging.getLogger("headgate")
T = TypeVar("T")
ENVELOPE_BYTES: Final = 300
"""About as much of an answer's body is not its text."""
_REASONED: Final = re.compile(rb'"finish_reason"\s*:\s*"(?!stop"|")')


class Pushing(Protocol):
    """A provider's stream that hands out its pieces at the moment they arrive, without waking a task for each."""

    async def pump(self, sink: Callable[[bytes], bool], caught_up: Callable[[], Awaitable[object]]) -> None:
        """All pieces that are yet to come. A sink that returns True is behind: wait for `caught_up`."""
        ...

    def stop(self) -> None:
        """The reader has all it wants: `pump` returns."""
        ...


class OpenStream:
    """A stream whose first content has arrived: `waiting` pieces are yet to be handed out."""

    __slots__ = ("pieces", "waiting")

    def __init__(self, pieces: AsyncIterator[bytes], waiting: list[bytes]) -> None:
        self.pieces = pieces
        self.waiting = waiting


Items: TypeAlias = Sequence[ItemAnswer]
Result: TypeAlias = Answer | OpenStream | Items


def make(provider: Provider, call: RoutedCall) -> Awaitable[Result]:
    """One attempt. `first_token_s` bounds whole answers only when it is set."""
    if call.many:
        return _send_many(provider, call)
    timeouts = call.route.timeouts
    if call.stream:
        return _open(_stream(provider, call), timeouts.stream_first_token_s)
    # The provider's own coroutine: each one around it would be gone through again at every step.
    answer = provider.send(call) if call.format in provider.formats else _send_translated(provider, call)
    return answer if timeouts.first_token_s is None else _in_time(answer, timeouts.first_token_s)


def usage_of(call: RoutedCall, result: Result) -> Usage | None:
    """What an attempt cost; a stream's usage is known at its end."""
    if isinstance(result, Answer):
        return estimate(call, len(result.body) - ENVELOPE_BYTES) if result.usage is None else result.usage
    if isinstance(result, OpenStream):
        return None
    if not call.many:
        raise TypeError(f"the provider's send must return an Answer, not {type(result).__name__}")
    known = [item.outcome.usage for item in result if isinstance(item.outcome, Answer) and item.outcome.usage]
    if not known:
        return None
    return Usage(sum(usage.input_tokens for usage in known), sum(usage.output_tokens for usage in known))


def estimate(call: Call, output_bytes: int) -> Usage:
    """For upstreams that do not count."""
    return Usage(input_tokens(call), -(-max(0, output_bytes) // CHARS_PER_TOKEN), estimated=True)


def flaw_of(call: RoutedCall, result: Result) -> str | None:
    """Why a result cannot be used. After it the call asks with its next changes, if it has some."""
    if isinstance(result, OpenStream):
        return None if result.waiting else "the stream ended without content"
    if not isinstance(result, Answer):
        return None  # Each item fares alone.
    flaw = result.flaw if call.check is None else result.flaw or checked(result, call.check)
    if flaw is not None and call.changes is not None and (change := next(call.changes, None)):
        call.fields = {**call.fields, **change}
        call.read = None
    return flaw


def checked(answer: Answer, check: Check) -> str | None:
    """The caller's own check; one that breaks raises `CheckBroken`, which blames nothing else."""
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


# ---- Other formats ------------------------------------------------------------------------------------------


def takes(provider: Provider, wanted: Format) -> bool:
    """Whether a provider can be asked in this format, directly or through chat."""
    formats = provider.formats
    return wanted in formats or (wanted is Format.COMPLETIONS and Format.CHAT in formats)


async def _send_translated(provider: Provider, call: Call) -> Answer:
    return completions.from_chat(await provider.send(_as_chat(provider, call)), call)


def _stream(provider: Provider, call: Call) -> AsyncIterator[bytes]:
    if call.format in provider.formats:
        return provider.stream(call)
    return completions.stream_from_chat(provider.stream(_as_chat(provider, call)), call)


def _as_chat(provider: Provider, call: Call) -> Call:
    if not takes(provider, call.format):
        raise no_embeddings()
    return completions.to_chat(call)


# ---- Many at once ---------------------------------------------------------------------------------------------


async def _send_many(provider: Provider, call: RoutedCall) -> Items:
    items: Sequence[Any] = await cast("ManyAtOnce", provider).send_many(call.many)
    for item in items:
        if not isinstance(item, ItemAnswer) or not isinstance(item.outcome, Answer | Failure):
            raise TypeError("the provider's send_many must return ItemAnswers")
    failures = [item.outcome for item in items if isinstance(item.outcome, Failure)]
    kinds = {failure.kind for failure in failures}
    # When all fail alike it is the call that failed: one retry, one fallback, one mark against the upstream.
    if len(failures) == len(call.many) and len(kinds) == 1 and FailureKind.REJECTED not in kinds:
        raise ProviderFailure(failures[0])
    return items


# ---- Streams --------------------------------------------------------------------------------------------------


async def _open(pieces: AsyncIterator[bytes], first_token_s: float) -> OpenStream:
    """Up to the first content: until then everything may still be retried."""
    try:
        waiting = await _first_content(pieces, first_token_s)
    except BaseException:
        await close_stream(pieces)
        raise
    if not waiting:
        await close_stream(pieces)
    return OpenStream(pieces, waiting)


async def _first_content(pieces: AsyncIterator[bytes], first_token_s: float) -> list[bytes]:
    """What came until the first content. A stream that ends before it is blank: nothing is kept of it."""
    first = FirstContent()
    seen: list[bytes] = []
    alarm = alarm_at(asyncio.get_running_loop().time() + first_token_s)
    try:
        async for piece in pieces:
            seen.append(piece)
            if first.feed(piece):
                return seen
            if first.done:
                break  # The upstream may keep its connection.
    except asyncio.CancelledError:
        if not alarm.missed():
            raise
        raise timed_out(f"no content within first_token_s ({first_token_s:g} s)") from None
    finally:
        alarm.off()
    whole = b"".join(seen)
    if DONE not in whole:
        raise cut_short()
    # Cut off at its bound, or filtered: it says why there is nothing, and so it is an answer.
    return seen if _REASONED.search(whole) else []


async def close_stream(pieces: AsyncIterator[Any]) -> None:
    """Stop the provider's work; generators and our own iterators both close this way."""
    closing = getattr(pieces, "aclose", None)
    if closing is None:
        return
    try:
        await closing()
    except Exception:
        # The call is over one way or another; how it ended is already known.
        logger.exception("a provider's stream could not be closed")


async def next_piece(pieces: AsyncIterator[T], idle_s: float) -> T:
    """The next piece, or a timeout failure after `idle_s` of silence. StopAsyncIteration passes through."""
    scope = asyncio.timeout(idle_s)
    try:
        async with scope:
            return await anext(pieces)
    except TimeoutError:
        if not scope.expired():
            raise
        raise timed_out(f"nothing came for idle_s ({idle_s:g} s)") from None


async def _in_time(answer: Awaitable[T], first_token_s: float) -> T:
    scope = asyncio.timeout(first_token_s)
    try:
        async with scope:
            return await answer
    except TimeoutError:
        if not scope.expired():
            raise
        raise timed_out(f"no answer within first_token_s ({first_token_s:g} s)") from None


def timed_out(message: str) -> ProviderFailure:
    return ProviderFailure(
        Failure(kind=FailureKind.TRANSIENT, message=message, code="timeout", timed_out=True)
    )
