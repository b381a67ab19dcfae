"""Many requests at once, without flooding the gate: each fares alone, order is kept, errors are values."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from headgate.core.errors import HeadgateError
from headgate.core.messages import Reply, Request

Ask = Callable[[Request], Awaitable[Reply]]


async def complete_many(
    requests: Sequence[Request], ask: Ask, in_flight: Callable[[str], int]
) -> list[Reply | HeadgateError]:
    """One result per request, in the order asked. `in_flight` bounds how many of a model run at once."""
    results: dict[int, Reply | HeadgateError] = {}
    by_model: dict[str, list[int]] = {}
    for index, request in enumerate(requests):
        by_model.setdefault(request.model, []).append(index)

    async def work(indexes: list[int]) -> None:
        while indexes:
            index = indexes.pop()
            try:
                results[index] = await ask(requests[index])
            except HeadgateError as error:
                results[index] = error

    async with asyncio.TaskGroup() as group:
        for model, indexes in by_model.items():
            indexes.reverse()  # The workers pop from the end: first asked, first sent.
            for _ in range(min(in_flight(model), len(indexes))):
                group.create_task(work(indexes))
    return [results[index] for index in range(len(requests))]
