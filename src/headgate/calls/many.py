"""Many requests at once, without flooding the gate: each fares alone, order is kept, errors are values."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headgate.core.answer import Reply
from headgate.core.call import Request
from headgate.core.errors import HeadgateError

Ask = Callable[[Request], Awaitable[Reply]]


async def complete_many(
    requests: Sequence[Request | HeadgateError], ask: Ask, in_flight: Callable[[str], int]
) -> list[Reply | HeadgateError]:
    """One result per request, in the order asked. `in_flight` bounds how many of a model run at once."""
    results: dict[int, Reply | HeadgateError] = {}
    by_model: dict[str, list[tuple[int, Request]]] = {}
    for index, request in enumerate(requests):
        if isinstance(request, Request):
            by_model.setdefault(request.model, []).append((index, request))
        else:
            results[index] = request

    async def work(waiting: list[tuple[int, Request]]) -> None:
        while waiting:
            index, request = waiting.pop()
            try:
                results[index] = await ask(request)
            except HeadgateError as error:
                results[index] = error

    async with asyncio.TaskGroup() as group:
        for model, waiting in by_model.items():
            waiting.reverse()  # The workers pop from the end: first asked, first sent.
            for _ in range(min(in_flight(model), len(waiting))):
                group.create_task(work(waiting))
    return [results[index] for index in range(len(requests))]
