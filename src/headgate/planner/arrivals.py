"""Load on a gateway: callers and jobs arrive when the scenario says, and note in the books how they fared."""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final, Protocol

from headgate.core.answer import Reply
from headgate.core.call import CHARS_PER_TOKEN, Lane, Message
from headgate.core.errors import DeadlineExceeded, HeadgateError, Refused
from headgate.core.ports.clock import Chance
from headgate.gateway import Gateway
from headgate.planner.books import ANSWERED, EXPIRED, FAILED, REFUSED, Books, Item
from headgate.planner.scenario import Load, Scenario
from headgate.planner.virtual import World
from headgate.runner.context import Context
from headgate.runner.tasks import Task

TASK: Final = "plan"
_MOST_SUBMITTED: Final = 1000


class Complete(Protocol):
    """Takes one call: the gateway, or the SDK alone."""

    async def __call__(
        self, *, model: str, messages: Sequence[Message], lane: Lane, deadline_s: float | None
    ) -> Reply: ...


class Arrivals:
    """All callers of one run. `task` is what its jobs do: one call each."""

    def __init__(self, world: World, books: Books, scenario: Scenario, model: str, seed: int) -> None:
        self._world = world
        self._books = books
        self._model = model
        # Chance of its own: whoever changes a setting is compared under the same arrivals.
        self._chance = random.Random(seed).random
        self._messages = [{"role": "user", "content": "x" * (CHARS_PER_TOKEN * scenario.tokens_in) or "x"}]
        self._job_items: dict[int, Item] = {}
        self.task: Task[int, None] = Task(TASK, self._work, model=model)

    async def come(self, gateway: Gateway, load: Load) -> None:
        """Let all of this load arrive; returns when its callers have their answers. Jobs go on."""
        match load.kind:
            case "calls":
                await self.call(gateway.complete, load)
            case "jobs":
                async for count in self._in_time(load):
                    await self._submit(gateway, load, count)
            case _:
                await self._world.clock.sleep(load.start_s)
                await self._ask_many(gateway, load)

    async def call(self, complete: Complete, load: Load) -> None:
        """The same for callers, whoever takes their calls."""
        async with asyncio.TaskGroup() as group:
            async for count in self._in_time(load):
                for _ in range(count):
                    group.create_task(self._ask(complete, load))

    async def _in_time(self, load: Load) -> AsyncIterator[int]:
        """How many arrive, when they do."""
        await self._world.clock.sleep(load.start_s)
        for after_s, count in list(_groups(load, self._chance)):
            await self._world.clock.sleep(after_s)
            yield count

    def _arrive(self, load: Load) -> Item:
        return self._books.arrive(load.its_lane, hurried=load.deadline_s is not None)

    # ---- Jobs -----------------------------------------------------------------------------------------

    async def _submit(self, gateway: Gateway, load: Load, count: int) -> None:
        for start in range(0, count, _MOST_SUBMITTED):
            first = len(self._job_items)
            items = [self._arrive(load) for _ in range(min(_MOST_SUBMITTED, count - start))]
            self._job_items.update(enumerate(items, first))
            asked = [{"task": TASK, "input": number} for number in range(first, first + len(items))]
            try:
                handles = await gateway.jobs.submit_many(asked)
            except Refused as error:
                for item in items:
                    self._failed(item, error)
            else:
                for handle, item in zip(handles, items, strict=True):
                    self._books.own_job(handle.id, item)

    async def _work(self, ctx: Context, number: int) -> None:
        item = self._job_items[number]
        # Before it can end: a job may be over before the submission of all has been answered.
        self._books.own_job(ctx.job.id, item)
        reply = await ctx.llm.complete(messages=self._messages)
        self._books.called(item, reply.request_id)

    # ---- Calls ----------------------------------------------------------------------------------------

    async def _ask(self, complete: Complete, load: Load) -> None:
        item = self._arrive(load)
        ends_at = math.inf if load.deadline_s is None else self._world.clock.now() + load.deadline_s
        while True:
            left_s = ends_at - self._world.clock.now()
            try:
                reply = await complete(
                    model=self._model,
                    messages=self._messages,
                    lane=load.its_lane,
                    deadline_s=None if left_s == math.inf else left_s,
                )
            except HeadgateError as error:
                if not await self._comes_back(load, error, ends_at):
                    self._failed(item, error)
                    return
            else:
                self._books.called(item, reply.request_id)
                self._books.end(item, ANSWERED)
                return

    async def _comes_back(self, load: Load, error: HeadgateError, ends_at: float) -> bool:
        """Wait as told, if this caller does and still has the time."""
        if not load.come_back or not isinstance(error, Refused):
            return False
        if self._world.clock.now() + error.retry_after_s >= ends_at:
            return False
        self._books.refusals[error.code] += 1
        await self._world.clock.sleep(error.retry_after_s)
        return True

    async def _ask_many(self, gateway: Gateway, load: Load) -> None:
        first = len(self._books.items)
        items = [self._arrive(load) for _ in range(load.count)]
        asked: list[dict[str, Any]] = []
        for number, item in enumerate(items, first):
            asked.append({"messages": self._messages, "request_id": f"item-{number}"})
            self._books.own_request(f"item-{number}", item)
        results = await gateway.complete_many(
            asked, model=self._model, lane=load.its_lane, deadline_s=load.deadline_s
        )
        for item, result in zip(items, results, strict=True):
            if isinstance(result, HeadgateError):
                self._failed(item, result)

    def _failed(self, item: Item, error: HeadgateError) -> None:
        match error:
            case Refused():
                self._books.refusals[error.code] += 1
                self._books.end(item, REFUSED)
            case DeadlineExceeded():
                self._books.end(item, EXPIRED)
            case _:
                self._books.end(item, FAILED)


def _groups(load: Load, chance: Chance) -> Iterator[tuple[float, int]]:
    """How many arrive together, and how long after the ones before."""
    if load.burst is not None and load.every_s is not None:
        for start in range(0, load.count, load.burst):
            yield load.every_s if start else 0.0, min(load.burst, load.count - start)
    elif load.per_s is not None:
        for _ in range(load.count):
            yield -math.log(1.0 - chance()) / load.per_s, 1
    else:
        yield 0.0, load.count
