"""The storm on a screen: the story scrolls by, a table stays below it. Into a pipe goes the story alone."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headgate.cli.demo.books import Books, End, Kind
from headgate.cli.demo.scene import Scene
from headgate.cli.demo.upstream import SimulatedUpstream

FRAME_S: Final = 0.25
PLAIN_EVERY_S: Final = 10.0
"""How often a line goes into a pipe where nothing else happens."""


class Screen:
    """Tells what happens, when it happens."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_at = time.monotonic()

    def tell(self, words: str) -> None:
        line = Text(f"{self._elapsed_s:5.1f} s  ", style="dim")
        self.show(line.append(words, style="not dim"))

    def show(self, *lines: RenderableType) -> None:
        try:
            self._console.print(*lines, sep="\n")
        except SystemExit:
            # Other commands end well when their reader leaves; a storm without a verdict has not.
            raise BrokenPipeError("nobody reads the demo any more; it ends without a verdict") from None

    @contextlib.asynccontextmanager
    async def showing(self, scene: Scene) -> AsyncIterator[None]:
        """While the block runs, what is going on stands below the story."""
        async with asyncio.TaskGroup() as group:
            terminal = self._console.is_terminal
            drawing = group.create_task(self._draw(scene) if terminal else self._note(scene))
            yield
            drawing.cancel()

    async def _draw(self, scene: Scene) -> None:
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self._frame(scene), refresh=True)
                await asyncio.sleep(FRAME_S)

    async def _note(self, scene: Scene) -> None:
        while True:
            await asyncio.sleep(PLAIN_EVERY_S)
            done = [f"{_answered(scene.books, kind)} of {_asked(scene.books, kind)} {kind}" for kind in Kind]
            self.tell(f"answered: {', '.join(done)}")

    def _frame(self, scene: Scene) -> RenderableType:
        title = Text(f"{self._elapsed_s:4.0f} s  dashboard: {scene.url}/", style="bold")
        return Group("", title, "", work_table(scene.books), "", upstream_table(scene.upstreams))

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_at


def work_table(books: Books) -> Table:
    table = _table("", "asked", "answered", "open", "refused", "failed", "dead")
    for kind in Kind:
        items = list(books.of(kind))
        ends = [end for item in items for end in item.ends]
        asked = _asked(books, kind)
        table.add_row(
            kind,
            str(asked),
            _number(ends.count(End.ANSWERED), "green"),
            _number(asked - len(ends), ""),
            _number(sum(item.refusals for item in items), "yellow"),
            _number(ends.count(End.FAILED) + ends.count(End.UNHEARD), "red"),
            _number(ends.count(End.DEAD), "red"),
        )
    return table


def upstream_table(upstreams: tuple[SimulatedUpstream, ...]) -> Table:
    table = _table("upstream", "calls", "answered", "open", "failed", "cut off", "throttled", "state")
    for upstream in upstreams:
        counts = upstream.counts
        table.add_row(
            upstream.name,
            str(counts.arrived.total()),
            _number(counts.answered.total(), "green"),
            _number(counts.in_flight, ""),
            _number(counts.failed, "red"),
            _number(counts.left, "yellow"),
            _number(counts.throttled, "yellow"),
            Text("down", style="red") if upstream.down else Text("up", style="green"),
        )
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(
            heading, justify="right" if number else "left", no_wrap=True, min_width=8 if number else 11
        )
    return table


def _number(count: int, style: str) -> Text:
    return Text(str(count), style=style if count else "dim")


def _asked(books: Books, kind: Kind) -> int:
    return sum(item.askers for item in books.of(kind))


def _answered(books: Books, kind: Kind) -> int:
    return sum(item.ends.count(End.ANSWERED) for item in books.of(kind))
