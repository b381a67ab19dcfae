"""Looking at all lines of a batch before any of them runs. In bites, so that nobody else waits for it."""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from headgate.batches.lines import LineFile
from headgate.core.access import covers
from headgate.core.batch import BatchError
from headgate.core.batch_lines import MOST_ERRORS, LineChecks, too_long, wrong_whole
from headgate.core.batch_order import MOST_LINES, BatchOrder
from headgate.core.errors import InvalidRequest


class Checking:
    """One look at one file."""

    def __init__(
        self,
        order: BatchOrder,
        *,
        read_body: Callable[[bytes], Any],
        check_model: Callable[[str], object],
        only: Collection[str] | None,
    ) -> None:
        self._order = order
        self._checks = LineChecks(endpoint=order.endpoint, read_body=read_body, only=only)
        self._check_model = check_model
        self._faults: dict[str, tuple[str, str] | None] = {}
        """By model, code and message of what is wrong with it."""

    async def look(self, path: Path) -> tuple[int, tuple[BatchError, ...]]:
        """How many lines there are to run, and what is wrong with them."""
        with LineFile(path) as file:
            while not self._checks.hopeless and self._checks.total <= MOST_LINES:
                models = await asyncio.to_thread(self._bite, file)
                if models is None:
                    break
                self._look_at_models(models)
        errors = sorted(self._checks.errors, key=lambda error: error.line or 0)[:MOST_ERRORS]
        if not errors and (whole := wrong_whole(self._checks.total, file.blank_lines)):
            errors = [whole]
        return self._checks.total, tuple(errors)

    def _bite(self, file: LineFile) -> list[tuple[int, str]] | None:
        """In a thread: the lines' numbers and models."""
        bite = file.bite()
        found = []
        for number, data in bite:
            if data is None:
                self._checks.errors.append(too_long(number))
            elif (model := self._checks.check(number, data)) is not None:
                found.append((number, model))
        return found if bite else None

    def _look_at_models(self, models: list[tuple[int, str]]) -> None:
        """In the loop: a model that nobody asked for before may be made by asking for it."""
        for number, model in models:
            if model not in self._faults:
                self._faults[model] = self._fault(model)
            fault = self._faults[model]
            if fault is not None:
                code, message = fault
                error = BatchError(code=code, line=number, message=message, param="body.model")
                self._checks.errors.append(error)

    def _fault(self, model: str) -> tuple[str, str] | None:
        if not covers(self._order.models, model):
            return "model_not_allowed", f"The key that made this batch may not use the model {model[:100]!r}."
        try:
            self._check_model(model)
        except InvalidRequest as error:
            return "model_not_found", str(error)
        return None
