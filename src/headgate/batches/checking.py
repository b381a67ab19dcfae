"""Looking at all lines of a batch before any of them runs. In bites and in threads, so that nobody else waits for it."""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

from headgate.batches.lines import LineFile
from headgate.core.access import covers
from headgate.core.batch import BatchError
from headgate.core.batch_lines import MOST_ERRORS, LineChecks, too_long, wrong_whole
from headgate.core.batch_order import MOST_LINES, BatchOrder
from headgate.core.errors import InvalidRequest, UnknownModel


class Checking:
    """One look at one file."""

    def __init__(
        self,
        order: BatchOrder,
        *,
        read_body: Callable[[bytes], Any],
        check_model: Callable[[str], object],
        only: Collection[str] | None,
        threads: Executor,
    ) -> None:
        self._order = order
        self._checks = LineChecks(endpoint=order.endpoint, read_body=read_body, only=only)
        self._check_model = check_model
        self._threads = threads
        self._faults: dict[str, tuple[str, str] | None] = {}
        """By model, code and message of what is wrong with it."""

    async def look(self, path: Path) -> tuple[int, tuple[BatchError, ...]]:
        """How many lines there are to run, and what is wrong with them."""
        with LineFile(path) as file:
            while not self._checks.hopeless and self._checks.total <= MOST_LINES:
                if not await asyncio.get_running_loop().run_in_executor(self._threads, self._bite, file):
                    break
        errors = sorted(self._checks.errors, key=lambda error: error.line or 0)[:MOST_ERRORS]
        if not errors and (whole := wrong_whole(self._checks.total, file.blank_lines)):
            errors = [whole]
        return self._checks.total, tuple(errors)

    def _bite(self, file: LineFile) -> bool:
        """In a thread: a few lines, False where there are no more."""
        bite = file.bite()
        for number, data in bite:
            if data is None:
                self._checks.errors.append(too_long(number))
            elif (model := self._checks.check(number, data)) is not None and not self._checks.hopeless:
                self._look_at_model(number, model)
        return bool(bite)

    def _look_at_model(self, number: int, model: str) -> None:
        """To find a name that was probably meant takes some milliseconds for each that is unknown."""
        if model not in self._faults:
            self._faults[model] = self._fault(model)
        if (fault := self._faults[model]) is not None:
            code, message = fault
            error = BatchError(code=code, line=number, message=message, param="body.model")
            self._checks.errors.append(error)

    def _fault(self, model: str) -> tuple[str, str] | None:
        if not covers(self._order.models, model):
            return "model_not_allowed", f"The key that made this batch may not use the model {model[:100]!r}."
        try:
            self._check_model(model)
        except InvalidRequest as error:
            if isinstance(error, UnknownModel) and self._order.models:
                error.narrow(partial(covers, self._order.models))
            return "model_not_found", str(error)
        return None
