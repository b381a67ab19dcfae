"""Two attempts of one call at once: the first answer wins, the other is cancelled and gives its slot back."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from headgate.calls.call import RoutedCall
from headgate.calls.sending import OpenStream, Result, close_stream
from headgate.calls.upstream import Emit, Failed, Upstream
from headgate.core import events
from headgate.core.failures import Failure, FailureKind
from headgate.core.hedging import Hedging
from headgate.core.ports.clock import Clock
from headgate.core.ticket import Ticket

LOOK_S: Final = 0.1
"""So often a slow call looks for a place for its second attempt."""
LEAST_S: Final = 0.001
"""No timer is shorter: one that rings early is set again."""


class Attempt(msgspec.Struct, eq=False):
    """One of the two: where it runs, and the slot it holds."""

    upstream: Upstream
    ticket: Ticket
    number: int

    def run(self, call: RoutedCall) -> Coroutine[None, None, Result | Failed]:
        return self.upstream.attempt(self.ticket, call, self.number)


class Race:
    """One call whose first attempt may get a rival. The slot of the first belongs to whoever began the race."""

    def __init__(
        self, call: RoutedCall, first: Attempt, hedging: Hedging, *, clock: Clock, emit: Emit
    ) -> None:
        self._call = call
        self._first = first
        self._hedging = hedging
        self._clock = clock
        self._emit = emit
        self._tasks: dict[asyncio.Task[Result | Failed], Attempt] = {}
        self._winner: Attempt | None = None
        self._spent_s = self._begun = 0.0

    async def run(self, second: Callable[[], Attempt | None]) -> tuple[Result | Failed, Attempt]:
        """The result, and the attempt it came from. `second` finds a place for the second attempt, if there is one."""
        self._spent_s, self._begun = self._call.upstream_s, self._clock.now()
        first = self._begin(self._first)
        try:
            while not first.done() and not self._seconded(second):
                await asyncio.wait({first}, timeout=self._look_in_s())
            return await self._first_answer(first)
        finally:
            await self._end()

    def _left_s(self) -> float | None:
        """Until the first attempt has taken too long; None while nobody knows what that is."""
        after_s = self._hedging.after_s(streamed=self._call.stream)
        return None if after_s is None else self._begun + after_s - self._clock.now()

    def _look_in_s(self) -> float:
        left_s = self._left_s()
        return LOOK_S if left_s is None or left_s <= 0 else max(LEAST_S, left_s)

    def _seconded(self, second: Callable[[], Attempt | None]) -> bool:
        """Begin the second attempt, if it is time, the share allows it and there is a place for it."""
        left_s = self._left_s()
        # Sums of times are rounded.
        if left_s is None or left_s > 1e-6 or not self._hedging.take():
            return False
        if (other := second()) is None:
            self._hedging.give_back()
            return False
        self._begin(other)
        return True

    def _begin(self, attempt: Attempt) -> "asyncio.Task[Result | Failed]":
        task = asyncio.create_task(attempt.run(self._call))
        self._tasks[task] = attempt
        return task

    async def _first_answer(self, first: "asyncio.Task[Result | Failed]") -> tuple[Result | Failed, Attempt]:
        """A failure waits for the other; if both fail, the first attempt's failure is the call's."""
        running = set(self._tasks)
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            # At the same instant the first attempt goes first.
            for task in sorted(done, key=lambda task: task is not first):
                if _answered(task):
                    self._winner = self._tasks[task]
                    return task.result(), self._winner
        return first.result(), self._first

    async def _end(self) -> None:
        """Stop the other attempt and free what it held, even if the caller leaves meanwhile."""
        self._note_times()
        async with AsyncExitStack() as ends:
            ends.callback(self._close_books)
            for task, attempt in self._tasks.items():
                ends.push_async_callback(self._drop, task, attempt)
            losers = [task for task, attempt in self._tasks.items() if attempt is not self._winner]
            for task in losers:
                task.cancel()
            try:
                await asyncio.gather(*losers, return_exceptions=True)
            except asyncio.CancelledError:
                self._winner = None  # Its answer has no reader any more.
                raise

    def _note_times(self) -> None:
        """Failures do not say how long answers take. An attempt that is stopped would have taken at least so long."""
        now, streamed = self._clock.now(), self._call.stream
        after_s = self._hedging.after_s(streamed=streamed)
        for task, attempt in self._tasks.items():
            took_s = now - attempt.ticket.attempt_at
            late = not task.done() and after_s is not None and took_s >= after_s
            if late or (task.done() and _answered(task)):
                self._hedging.took(took_s, streamed=streamed)

    async def _drop(self, task: "asyncio.Task[Result | Failed]", attempt: Attempt) -> None:
        """Close a stream that opened too late, and give back the slot of the second attempt."""
        if attempt is self._winner:
            return
        upstream, ticket = attempt.upstream, attempt.ticket
        opened = task.result() if _answered(task) else None
        try:
            if isinstance(opened, OpenStream):
                await close_stream(opened.pieces)
        finally:
            if isinstance(opened, OpenStream):
                upstream.free_tokens(ticket)
                stopped = Failure(kind=FailureKind.CANCELLED)
                upstream.tell_attempt(self._call, attempt.number, ticket.attempt_at, stopped, None)
            if attempt is not self._first:
                upstream.gate.leave(ticket)

    def _close_books(self) -> None:
        # Both ran at the same time: the caller waited once. A stream that goes on counts its own time, from its start.
        winner = self._winner if self._call.stream else None
        until = self._clock.now() if winner is None else winner.ticket.attempt_at
        self._call.upstream_s = self._spent_s + until - self._begun
        if len(self._tasks) > 1:
            self._tell()

    def _tell(self) -> None:
        second = next(attempt for attempt in self._tasks.values() if attempt is not self._first)
        self._emit(
            events.Hedged(
                request_ids=self._call.request_ids,
                model=self._call.model,
                upstream=self._first.upstream.name,
                second_upstream=second.upstream.name,
                won=self._winner is second,
                tenant=self._call.tenant,
            )
        )


def _answered(task: "asyncio.Task[Result | Failed]") -> bool:
    return not (task.cancelled() or task.exception() or isinstance(task.result(), Failed))
