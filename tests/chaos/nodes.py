"""The nodes under test: `headgate serve --no-work` and `headgate work` as processes, each behind a wire of its own."""

import asyncio
import contextlib
import json
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from chaos.books import Books, Disturbance, Exit, Kind
from crash.harness import Child, Clocks, Family
from wire import Moment, Wire

READY: Final = re.compile(r"headgate (?:serve: (?P<url>http://\S+?),|work: )")
START_S: Final = 60.0
DRAIN_S: Final = 15.0


@dataclass
class Node:
    """One place for a process: whatever process runs there now, its clocks, its wire and its folder."""

    name: str
    family: Family
    books: Books
    words: list[str]
    folder: Path
    clocks: Clocks
    wire: Wire | None = None
    children: list[Child] = field(default_factory=list)
    launched: list[float] = field(default_factory=list)
    url: str = ""
    wanted: bool = False
    """It is to run: a process that ends now ends by itself."""
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whatever starts, stops or freezes its process: one thing at a time."""

    @property
    def is_gateway(self) -> bool:
        return self.words[0] == "serve"

    @property
    def child(self) -> Child:
        return self.children[-1]

    @property
    def process(self) -> str:
        return f"{self.name}#{len(self.children)}"

    def log_of(self, number: int) -> str:
        """Empty as long as the process has not begun to write one."""
        with contextlib.suppress(FileNotFoundError):
            return self.family.site.log_of(self.children[number - 1])
        return ""

    async def start(self) -> None:
        """Until its first line. A process that ends before it is started again: its store may be away."""
        deadline = time.monotonic() + START_S
        self.wanted = True
        self._launch()
        while True:
            if ready := READY.search(self.log_of(len(self.children))):
                self.url = ready["url"] or ""
                self.books.lives[self.process] = (time.time(), float("inf"))
                return
            if self.child.is_over():
                self._note_exit()
                await asyncio.sleep(0.2)
                self._launch()
            assert time.monotonic() < deadline, f"{self.name} does not start: {self._last_words()}"
            await asyncio.sleep(0.02)

    def _launch(self) -> None:
        self.launched.append(time.time())
        self.children.append(
            self.family.start("node", words=self.words, folder=str(self.folder), clocks=str(self.clocks.path))
        )

    def process_at(self, at: float) -> str:
        """Which of its processes ran then."""
        return f"{self.name}#{sum(launched <= at for launched in self.launched)}"

    async def keep(self) -> None:
        """Start it again if it ended by itself, and note that."""
        if self.wanted and not self.changing.locked():
            async with self.changing:
                await self._revive()

    async def _revive(self) -> None:
        if self.child.is_over():
            self._note_exit()
            await self.start()

    def _note_exit(self) -> None:
        self._is_over_now()
        self.books.exits.append(Exit(self.name, time.time(), self.child.wait()))

    def _is_over_now(self) -> None:
        began, _ = self.books.lives.get(self.process, (time.time(), 0.0))
        self.books.lives[self.process] = (began, time.time())

    def _last_words(self) -> str:
        return "\n".join(self.log_of(number)[-1500:] for number in range(1, len(self.children) + 1)[-2:])

    # ---- What is done to it --------------------------------------------------------------------------

    async def kill(self, away_s: float = 0.0) -> None:
        """As `kill -9`; started again after this long."""
        async with self.changing:
            await self._revive()
            death = self._begin(Kind.KILL)
            self._is_over_now()
            self.child.kill()
            await asyncio.sleep(away_s)
            await self.start()
            death.ended = time.time()

    async def restart(self) -> None:
        """As a process manager does it: SIGTERM, wait for the end, start."""
        async with self.changing:
            await self._revive()
            stop = self._begin(Kind.STOP)
            await self._end()
            await self.start()
            stop.ended = time.time()

    async def _end(self) -> None:
        self._is_over_now()
        self.child.send(signal.SIGTERM)
        code = await asyncio.to_thread(self.child.wait, DRAIN_S + 20)
        if code:
            self.books.exits.append(Exit(self.name, time.time(), code))

    async def freeze(self, seconds: float) -> None:
        """Every thread is stopped (SIGSTOP), and continues later."""
        async with self.changing:
            await self._revive()
            await asyncio.to_thread(self.family.freeze, self.child)
            freeze = self._begin(Kind.FREEZE, f"{seconds:.1f} s")
            await asyncio.sleep(seconds)
            self.child.send(signal.SIGCONT)
            freeze.ended = time.time()

    async def silence(self, seconds: float, *, up: bool = True, down: bool = True) -> None:
        assert self.wire is not None
        trouble = self._begin(
            Kind.SILENCE, "both ways" if up and down else "its questions" if up else "the answers"
        )
        self.wire.stall(up=up, down=down)
        await asyncio.sleep(seconds)
        self.wire.heal()
        trouble.ended = time.time()

    async def refuse(self, seconds: float) -> None:
        assert self.wire is not None
        trouble = self._begin(Kind.REFUSAL)
        self.wire.refuse()
        await asyncio.sleep(seconds)
        self.wire.heal()
        trouble.ended = time.time()

    async def slow_down(self, seconds: float, delay_s: float) -> None:
        assert self.wire is not None
        trouble = self._begin(Kind.DELAY, f"{delay_s:g} s each way")
        self.wire.delay_s = delay_s
        await asyncio.sleep(seconds)
        self.wire.heal()
        trouble.ended = time.time()

    def cut(self) -> None:
        """Every connection, once."""
        assert self.wire is not None
        self.wire.cut()
        trouble = self._begin(Kind.CUT, "all connections")
        trouble.ended = time.time()

    async def cut_at(self, text: bytes, moment: Moment, *, also: bytes = b"", within_s: float) -> bool:
        """The connection, at the next statement like this; whether there was one in time."""
        assert self.wire is not None
        cut = self.wire.cut_at(text, moment, also=also)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await cut.done.wait()
        if not cut.done.is_set():
            self.wire.forget(cut)
            return False
        said = f"{moment} {text.decode()!r} {also.decode()}".rstrip()
        trouble = Disturbance(Kind.CUT, self.name, cut.at, cut.at, said)
        self.books.disturbances.append(trouble)
        return True

    def set_clock(self, wall_s: float, suspended_s: float = 0.0) -> None:
        self.clocks.set(wall_s, suspended_s)
        step = self._begin(Kind.CLOCK, f"{wall_s:+g} s")
        step.ended = time.time()

    def _begin(self, kind: Kind, note: str = "") -> Disturbance:
        one = Disturbance(kind, self.name, time.time(), note=note)
        self.books.disturbances.append(one)
        return one

    async def stop(self) -> None:
        """At the end of a test."""
        async with self.changing:
            if self.wanted and not self.child.is_over():
                self.wanted = False
                await self._end()


def settings_of(
    node: str, folder: Path, database: str, upstream: str, *, lease_s: float, breaker: bool
) -> dict[str, Any]:
    """What the node's settings file says."""
    quick = {"first_wait_s": 0.1, "longest_wait_s": 1.0}
    return {
        "data_dir": str(folder),
        "logs_dir": str(folder / f"logs of {node}"),
        "database": database,
        "listen": "127.0.0.1:0",
        "limits": {"drain_s": DRAIN_S},
        "jobs": {"lease_s": lease_s, "workers": 24, "retry": {"max_attempts": 20, **quick}},
        "models": {
            "m": {
                "upstreams": [
                    {
                        "provider": "openai",
                        "model": "x",
                        "base_url": upstream,
                        "slots": 64,
                        "depth": 1000,
                        "breaker": breaker,
                    }
                ],
                "retry": {"max_attempts": 4, **quick},
            }
        },
    }


def write_settings(path: Path, settings: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings))
