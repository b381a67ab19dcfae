"""Batches on the screen: a table, one in full, and a bar while somebody waits for one.

Exit codes: 0 completed, 1 failed, expired or cancelled, 3 not over in time.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from headgate.cli.backend import Backend
from headgate.cli.screen import note, show, show_json, stderr, stdout
from headgate.cli.tables import Column, Row, lay_out
from headgate.cli.waiting import ENDED, FAILED, TIMED_OUT
from headgate.cli.words import age, one_line
from headgate.core.batch import Batch, BatchState
from headgate.core.errors import Refused

LOOK_EVERY_S: Final = 0.5
_STYLES: Final = {
    BatchState.COMPLETED: "green",
    BatchState.FAILED: "red",
    BatchState.EXPIRED: "red",
    BatchState.CANCELLED: "yellow",
    BatchState.CANCELLING: "yellow",
}
_COLUMNS: Final = (
    Column("id"),
    Column("status"),
    Column("lines", right=True),
    Column("done", right=True),
    Column("failed", right=True),
    Column("endpoint", flexible=True),
    Column("age", right=True),
)


def show_page(batches: Sequence[Batch], *, more: bool, as_json: bool) -> None:
    last_id = batches[-1].id if batches else None
    if as_json:
        show_json({"object": "list", "data": batches, "has_more": more, "last_id": last_id})
        return
    if not batches:
        show("There are no batches. Create one: headgate batches create FILE")
        return
    show(*lay_out(_COLUMNS, [_row(batch) for batch in batches], width=stdout().width, note="error"))
    if more:
        note(Text(f"There are more: add --after {last_id}", "dim"))


def show_batch(batch: Batch, place_of: Callable[[str], str]) -> None:
    """One in full. `place_of` says where the bytes of a file are."""
    counts = batch.request_counts
    show(
        f"{batch.id}  {batch.status}",
        f"lines      {counts.total:,}: {counts.completed:,} completed, {counts.failed:,} failed",
        f"endpoint   {batch.endpoint}, within {batch.completion_window}",
        f"input      {place_of(batch.input_file_id)}",
    )
    if batch.output_file_id is not None:
        show(f"output     {place_of(batch.output_file_id)}")
    if batch.error_file_id is not None:
        show(f"errors     {place_of(batch.error_file_id)}")
    for name, value in (batch.metadata or {}).items():
        show(f"metadata   {one_line(name)}: {one_line(value)}")
    for words in _error_words(batch):
        show(f"wrong      {words}")


async def wait_for(backend: Backend, batch_id: str, *, patience_s: float) -> Batch | None:
    """The batch once it has ended; None when that took too long."""
    async with _bar(backend, batch_id):
        try:
            return await backend.wait_for_batch(batch_id, None if math.isinf(patience_s) else patience_s)
        except asyncio.CancelledError:
            note(f"The batch goes on: headgate batches wait {batch_id}")
            raise


def conclude(
    batch: Batch | None, batch_id: str, place_of: Callable[[str], str], *, patience_s: float, as_json: bool
) -> int:
    """Show what came of it; answers with the exit code."""
    if batch is None:
        again = f"headgate batches wait {batch_id}"
        note(f"Batch {batch_id} has not ended within {patience_s:g} s. It goes on: {again}")
        return TIMED_OUT
    if as_json:
        show_json(batch)
    else:
        show_batch(batch, place_of)
    return ENDED if batch.status is BatchState.COMPLETED else FAILED


@contextlib.asynccontextmanager
async def _bar(backend: Backend, batch_id: str) -> AsyncIterator[None]:
    """On a terminal, how far the lines are while somebody waits for them."""
    screen = stderr()
    if not screen.is_terminal:
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        moving = asyncio.create_task(_move(backend, batch_id, progress))
        try:
            yield
        finally:
            moving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await moving


async def _move(backend: Backend, batch_id: str, progress: Progress) -> None:
    line = progress.add_task("", total=None)
    while True:
        with contextlib.suppress(Refused):
            batch = await backend.batch(batch_id)
            counts = batch.request_counts
            done = counts.completed + counts.failed
            progress.update(line, description=batch.status, total=counts.total or None, completed=done)
        await asyncio.sleep(LOOK_EVERY_S)


def _row(batch: Batch) -> Row:
    counts = batch.request_counts
    cells = (
        Text(batch.id),
        Text(str(batch.status), _STYLES.get(batch.status, "cyan")),
        Text(f"{counts.total:,}"),
        Text(f"{counts.completed:,}"),
        Text(f"{counts.failed:,}"),
        Text(batch.endpoint),
        Text(age(datetime.now(UTC).timestamp() - batch.created_at)),
    )
    words = next(iter(_error_words(batch)), "")
    return Row(cells, Text(words, "dim") if words else None)


def _error_words(batch: Batch) -> list[str]:
    errors = () if batch.errors is None else batch.errors.data
    return [
        one_line(f"{'' if error.line is None else f'line {error.line}: '}{error.code}: {error.message}")
        for error in errors
    ]
