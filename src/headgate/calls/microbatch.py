"""Micro-batches: gather calls for a model, send them as one, route each answer back by its id.

Chats travel together where the provider's wire format takes many at once; embeddings travel as one request with
several inputs. A batch is a transport detail: each call succeeds, fails or is retried alone. A batch that fails as a
whole, or in all its calls alike, is retried as a whole: ten retries at once would be a storm. A rejected one is taken
apart, because one bad call must not fail its neighbours.
"""

import asyncio
import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from headgate.calls.call import RoutedCall, Setback
from headgate.calls.dispatcher import deadline_passed
from headgate.calls.router import ResponseRouter
from headgate.calls.routes import Gather
from headgate.calls.sending import checked, usage_of
from headgate.calls.setback import from_failure
from headgate.calls.upstream import Failed, Upstream
from headgate.core import events
from headgate.core.answer import Answer, Reply
from headgate.core.call import Format
from headgate.core.errors import CheckBroken, Draining, HeadgateError, RequestRejected
from headgate.core.failures import Failure, FailureKind
from headgate.core.ports.provider import ItemAnswer
from headgate.formats import embeddings
from headgate.formats.reading import NoAnswer

if TYPE_CHECKING:
    from headgate.calls.requests import Requests

_UNANSWERED = Failure(
    kind=FailureKind.TRANSIENT, message="the provider left this item out of its answer", code="item_missing"
)


class Gatherers:
    """All micro-batches of a process. Calls that differ in what a batch must have in common do not meet."""

    def __init__(self, requests: "Requests") -> None:
        emit = requests.dispatcher.emit
        self.router = ResponseRouter(on_stray=lambda lost: emit(events.StrayAnswer(request_id=lost)))
        self._requests = requests
        self._by_key: dict[Hashable, Gatherer] = {}

    def find(self, call: RoutedCall, *, insist: bool = False) -> "Gatherer | None":
        """Where this call is gathered with others; None when it goes alone."""
        route = call.route
        key: Hashable = None
        if (route.gather is None and not insist) or call.alone:
            return None
        if call.format is Format.EMBEDDINGS:
            if route.gather is None or not 0 < len(embeddings.entries_of(call)) < route.gather.size:
                return None
            if (fields := embeddings.other_fields(call)) is None:
                return None  # Its provider says what is wrong.
            # JSON as it came and the values of a library's caller do not mix.
            size, key = route.gather.size, (call.size_bytes > 0, fields)
        elif call.format is Format.CHAT and route.max_calls > 1:
            size = route.max_calls if route.gather is None else min(route.gather.size, route.max_calls)
        else:
            return None
        place = (call.model, call.format, key, call.lane, call.tenant, call.policy, call.waits)
        gatherer = self._by_key.get(place)
        if gatherer is None:
            gather = route.gather or Gather()
            fitting = Gather(size=size, wait_ms=gather.wait_ms)
            gatherer = self._by_key[place] = Gatherer(
                self._requests, self.router, fitting, lambda: self._by_key.pop(place, None)
            )
        return gatherer

    async def aclose(self) -> None:
        for gatherer in list(self._by_key.values()):
            await gatherer.aclose()


class _Item:
    """One caller's call. Its task, once it has one of its own, stops when the caller leaves."""

    __slots__ = ("batch", "call", "size", "task")

    def __init__(self, call: RoutedCall) -> None:
        self.call = call
        self.size = len(embeddings.entries_of(call)) if call.format is Format.EMBEDDINGS else 1
        self.batch: _Batch | None = None
        self.task: asyncio.Task[None] | None = None


class _Batch:
    """One call for several callers; it stops when the last of them has left."""

    __slots__ = ("asked", "call", "items", "task")

    def __init__(self, items: list[_Item]) -> None:
        self.call = _together([item.call for item in items])
        self.call.spend = self._lose
        self.items = {item.call.id: item for item in items}
        self.asked = tuple(item.call for item in items)
        self.task: asyncio.Task[None] | None = None
        for item in items:
            item.batch = self

    def _lose(self, _tokens: int) -> None:
        """Each of its callers by itself."""
        for item in self.items.values():
            item.call.lose()

    def leave(self, item: _Item) -> None:
        if self.items.pop(item.call.id, None) is not None and item.task is None and self.call.attempts:
            item.call.lose()
        if not self.items and self.task is not None:
            self.task.cancel()


class Gatherer:
    """Collects calls until the batch is full or old enough."""

    def __init__(
        self, requests: "Requests", router: ResponseRouter, gather: Gather, on_idle: Callable[[], object]
    ) -> None:
        self._requests = requests
        self._dispatcher = requests.dispatcher
        self._router = router
        self._gather = gather
        self._on_idle = on_idle
        self._open: dict[str, _Item] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closes_at = math.inf
        """Kept here, not read from the timer: uvloop returns a plain Handle for a time that is almost now."""
        self._asking: set[_Item] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, call: RoutedCall) -> Reply:
        """Join the open batch and wait for the own reply, no longer than the own deadline."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._router.register(call, future)
        item = _Item(call)
        self._asking.add(item)
        try:
            self._join(item)
            return await self._in_time(item, future)
        finally:
            self._asking.discard(item)
            self._leave(item)
            if future.done() and not future.cancelled():
                future.exception()  # Seen, also when the caller was cancelled at the same instant.
            if not self._asking:
                self._on_idle()

    async def _in_time(self, item: _Item, future: asyncio.Future[Reply]) -> Reply:
        scope = asyncio.timeout_at(item.call.deadline)
        try:
            async with scope:
                return await future
        except TimeoutError as error:
            if isinstance(error, HeadgateError) or not scope.expired():
                raise
            raise deadline_passed(item.call, self._dispatcher.clock.now()) from None

    async def aclose(self) -> None:
        """Stop all batches; callers that still wait get an error."""
        self._stop_timer()
        for item in list(self._asking):
            self._fail(item, Draining("the gateway is shutting down", retry_after_s=1.0))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- Gathering --------------------------------------------------------------------------------

    def _join(self, item: _Item) -> None:
        if sum(one.size for one in self._open.values()) + item.size > self._gather.size:
            self._close_batch()
        self._open[item.call.id] = item
        if sum(one.size for one in self._open.values()) >= self._gather.size:
            self._close_batch()
            return
        now = self._dispatcher.clock.now()
        # Whoever is in a hurry takes the others along early.
        closes_at = now + min(self._gather.wait_ms / 1000, (item.call.deadline - now) / 2)
        if closes_at < self._closes_at:
            self._stop_timer()
            self._closes_at = closes_at
            self._timer = asyncio.get_running_loop().call_at(closes_at, self._close_batch)

    def _leave(self, item: _Item) -> None:
        """The asker is gone: so is its request, and the call once nobody else needs it."""
        self._open.pop(item.call.id, None)
        if item.batch is not None:
            item.batch.leave(item)
        if item.task is not None:
            item.task.cancel()

    def _close_batch(self) -> None:
        self._stop_timer()
        if self._open:
            batch = _Batch(list(self._open.values()))
            self._open = {}
            batch.task = self._start(self._send(batch), "headgate micro-batch")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._closes_at = math.inf

    def _start(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- Sending ----------------------------------------------------------------------------------

    async def _send(self, batch: _Batch) -> None:
        call = batch.call
        try:
            served = await self._requests.insist(call)
        except HeadgateError as error:
            self._share_story(batch, call)
            self._failed_whole(batch, error)
            return
        served.release()
        self._share_story(batch, call)
        if call.many:
            self._route(batch, cast("Sequence[ItemAnswer]", served.result), served.upstream)
            return
        try:
            answers = embeddings.split_answer(served.answer, batch.asked)
        except NoAnswer as error:
            failed = Failed(Failure(kind=FailureKind.BROKEN, message=str(error), code="bad_envelope"))
            name, why = served.upstream.name, "its answer cannot be shared out"
            self._failed_whole(
                batch, from_failure(failed, upstream=name, attempts=call.attempts, why=why).error
            )
            return
        items = [ItemAnswer(one.id, answer) for one, answer in zip(batch.asked, answers, strict=True)]
        self._route(batch, items, served.upstream)

    def _share_story(self, batch: _Batch, call: RoutedCall) -> None:
        """What the call went through, each of its items went through."""
        for item in batch.items.values():
            item.call.attempts, item.call.queue_s = call.attempts, call.queue_s
            item.call.upstream_s = call.upstream_s
            item.call.tries, item.call.finished = dict(call.tries), dict(call.finished)
            item.call.faults, item.call.later = dict(call.faults), dict(call.later)

    def _failed_whole(self, batch: _Batch, error: HeadgateError) -> None:
        """A rejected call is taken apart to find the bad item; any other failure is everybody's."""
        items = list(batch.items.values())
        for item in items:
            if isinstance(error, RequestRejected) and len(items) > 1:
                item.call.tries, item.call.faults, item.call.finished = {}, {}, {}
                self._start_alone(item)
            else:
                self._fail(item, error)

    def _route(self, batch: _Batch, answers: Sequence[ItemAnswer], upstream: Upstream) -> None:
        for answer in answers:
            item = batch.items.pop(answer.request_id, None)
            if item is not None:
                self._judge(item, answer.outcome, upstream)
            elif answer.request_id not in batch.call.request_ids:
                self._router.stray(answer.request_id)
        for item in list(batch.items.values()):
            self._again(item, _UNANSWERED, upstream)
        batch.items.clear()

    def _judge(self, item: _Item, outcome: Answer | Failure, upstream: Upstream) -> None:
        if isinstance(outcome, Failure):
            self._again(item, outcome, upstream)
            return
        check = item.call.check
        try:
            flaw = outcome.flaw or (checked(outcome, check) if check is not None else None)
        except CheckBroken as error:
            self._fail(item, error)
            return
        if flaw is None:
            self._answer(item, outcome, upstream)
        else:
            self._again(item, Failure(kind=FailureKind.INVALID_OUTPUT, message=flaw), upstream)

    # ---- Items that went wrong --------------------------------------------------------------------

    def _again(self, item: _Item, failure: Failure, upstream: Upstream) -> None:
        """One item failed in a call that went well: it goes on alone, here or on the next upstream."""
        failed = Failed(failure)
        number = item.call.tries.get(upstream.name, 1)
        others = [
            other
            for other in item.call.route.upstreams
            if other is not upstream and other.name not in item.call.finished
        ]
        decision = self._dispatcher.retries.decide(item.call, upstream, failed, number, others=bool(others))
        if not isinstance(decision, Setback):
            self._dispatcher.retries.announce(item.call, upstream, failed, number, decision)
            item.call.later[upstream.name] = self._dispatcher.clock.now() + decision
            self._start_alone(item)
        elif decision.moves_on and others:
            item.call.finished[upstream.name] = decision
            self._start_alone(item)
        else:
            self._fail(item, decision.error)

    def _start_alone(self, item: _Item) -> None:
        item.task = self._start(self._alone(item), "headgate micro-batch item")
        item.task.add_done_callback(lambda _: item.call.give_back())

    async def _alone(self, item: _Item) -> None:
        try:
            served = await self._requests.insist(item.call)
        except HeadgateError as error:
            self._fail(item, error)
            return
        served.release()
        self._answer(item, served.answer, served.upstream)

    def _answer(self, item: _Item, answer: Answer, upstream: Upstream) -> None:
        call = item.call
        if answer.usage is None:
            answer = msgspec.structs.replace(answer, usage=usage_of(call, answer))
        if item.batch is not None and item.task is None and answer.usage is not None:
            call.answer_cost_usd = upstream.cost(answer.usage)
            call.cost_usd += call.answer_cost_usd or 0.0
        self._router.resolve(self._requests.reply(call, answer, upstream.name))

    def _fail(self, item: _Item, error: HeadgateError) -> None:
        self._router.resolve_error(item.call.id, error)


def _together(calls: list[RoutedCall]) -> RoutedCall:
    """The call of all: one place in the queue, as long as any of them has time."""
    first = calls[0]
    started_at = min(call.started_at for call in calls)
    together = msgspec.structs.replace(
        first,
        request_ids=tuple(call.id for call in calls),
        started_at=started_at,
        since=started_at,
        deadline=max(call.deadline for call in calls),
        tokens=sum(call.tokens for call in calls),
        size_bytes=sum(call.size_bytes for call in calls),
        check=None,
        tries={},
        faults={},
        later={},
        finished={},
        admitted=set(),
    )
    if first.format is Format.EMBEDDINGS:
        together.fields = {**first.fields, "input": embeddings.join_inputs(calls)}
        together.read = None
    else:
        together.plain = False
        together.many = tuple(call for call in calls)
    return together
