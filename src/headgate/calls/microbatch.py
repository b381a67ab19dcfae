"""Micro-batches: gather requests for a model, send them in one call, route each answer back by its id.

A batch is a transport detail. Each item succeeds, fails or is retried alone. A call that fails as a whole, or in all its
items alike, is retried as a whole: asking ten times over would be a storm. A rejected one is taken apart, because
one bad item must not fail its neighbours.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from headgate.calls.call import Call, Setback
from headgate.calls.dispatcher import deadline_passed
from headgate.calls.requests import Requests
from headgate.calls.router import ResponseRouter
from headgate.calls.routes import Gather
from headgate.calls.upstream import Failed, Upstream
from headgate.calls.work import Check, Complete, CompleteMany, flaw_of
from headgate.core.errors import CheckBroken, Draining, HeadgateError, RequestRejected
from headgate.core.failures import Failure, FailureKind
from headgate.core.messages import Answer, Reply, Request
from headgate.core.ports.provider import ItemAnswer

_UNANSWERED = Failure(
    kind=FailureKind.TRANSIENT, message="the provider left this item out of its answer", code="item_missing"
)


class _Item:
    """One asker's request. Its task, once it has one of its own, stops when the asker leaves."""

    __slots__ = ("batch", "call", "check", "request", "task")

    def __init__(self, request: Request, call: Call, check: Check | None) -> None:
        self.request = request
        self.call = call
        self.check = check
        self.batch: _Batch | None = None
        self.task: asyncio.Task[None] | None = None


class _Batch:
    """One call for several askers; it stops when the last of them has left."""

    __slots__ = ("asked", "call", "items", "task")

    def __init__(self, items: list[_Item]) -> None:
        self.call = _together(items)
        self.call.spend = self._lose
        self.items = {item.request.id: item for item in items}
        self.asked = frozenset(self.items)
        self.task: asyncio.Task[None] | None = None
        for item in items:
            item.batch = self

    def _lose(self, _tokens: int) -> None:
        """Each of its askers by itself."""
        for item in self.items.values():
            item.call.lose()

    def leave(self, item: _Item) -> None:
        if self.items.pop(item.request.id, None) is not None and item.task is None and self.call.attempts:
            item.call.lose()
        if not self.items and self.task is not None:
            self.task.cancel()


class Gatherer:
    """Collects requests of one model, lane, tenant and retry policy until the batch is full or old enough."""

    def __init__(self, requests: Requests, router: ResponseRouter, gather: Gather) -> None:
        self._requests = requests
        self._dispatcher = requests.dispatcher
        self._router = router
        self._gather = gather
        self._open: dict[str, _Item] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closes_at = math.inf
        """Kept here, not read from the timer: uvloop returns a plain Handle for a time that is almost now."""
        self._asking: set[_Item] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        return not self._asking

    async def ask(self, request: Request, call: Call, check: Check | None = None) -> Reply:
        """Join the open batch and wait for the own answer, no longer than the own deadline."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._router.register(request, future)
        item = _Item(request, call, check)
        self._asking.add(item)
        try:
            self._join(item)
            reply = await self._in_time(item, future)
        except asyncio.CancelledError:
            self._requests.cancelled(request, call)
            raise
        except Exception as error:
            self._requests.failed(request, call, error)
            raise
        finally:
            self._asking.discard(item)
            self._leave(item)
            if future.done() and not future.cancelled():
                future.exception()  # Seen, also when the asker was cancelled at the same instant.
        self._requests.answered(request, call, reply)
        return reply

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
        """Stop all batches; whoever still asks is told."""
        self._stop_timer()
        for item in list(self._asking):
            self._fail(item, Draining("the gateway is shutting down", retry_after_s=1.0))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- Gathering --------------------------------------------------------------------------------

    def _join(self, item: _Item) -> None:
        self._open[item.request.id] = item
        if len(self._open) >= self._gather.size:
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
        self._open.pop(item.request.id, None)
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
        items = list(batch.items.values())
        call = batch.call
        work = CompleteMany([item.request for item in items])
        try:
            served = await self._requests.run(call, work, insist=True)
        except HeadgateError as error:
            self._share_story(batch, call)
            self._failed_whole(batch, error)
            return
        served.release()
        self._share_story(batch, call)
        self._route(batch, served.result, served.upstream)

    def _share_story(self, batch: _Batch, call: Call) -> None:
        """What the call went through, each of its items went through."""
        for item in batch.items.values():
            item.call.attempts, item.call.queue_s = call.attempts, call.queue_s
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
            elif answer.request_id not in batch.asked:
                self._router.stray(answer.request_id)
        for item in list(batch.items.values()):
            self._again(item, _UNANSWERED, upstream)
        batch.items.clear()

    def _judge(self, item: _Item, outcome: Answer | Failure, upstream: Upstream) -> None:
        if isinstance(outcome, Failure):
            self._again(item, outcome, upstream)
            return
        try:
            flaw = flaw_of(outcome, item.check)
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
            for other in self._dispatcher.routes.find(item.request.model).upstreams
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
            served = await self._requests.run(item.call, Complete(item.request, item.check), insist=True)
        except HeadgateError as error:
            self._fail(item, error)
            return
        served.release()
        self._answer(item, served.result, served.upstream)

    def _answer(self, item: _Item, answer: Answer, upstream: Upstream) -> None:
        self._router.resolve(self._requests.reply(item.request, item.call, answer, upstream.name))

    def _fail(self, item: _Item, error: HeadgateError) -> None:
        self._router.resolve_error(item.request.id, error)


def _together(items: list[_Item]) -> Call:
    """The envelope of all: one place in the queue, as long as any of them has time."""
    first = items[0].call
    started_at = min(item.call.started_at for item in items)
    return Call(
        model=first.model,
        request_ids=tuple(item.request.id for item in items),
        started_at=started_at,
        since=started_at,
        deadline=max(item.call.deadline for item in items),
        lane=first.lane,
        tenant=first.tenant,
        tokens=sum(item.call.tokens for item in items),
        policy=first.policy,
        waits=first.waits,
    )
