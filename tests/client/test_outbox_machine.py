"""The outbox against a small model: whatever fails, in whatever order, an entry is one job and a stream keeps its order."""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from client.stub import Fault, Stub, listening
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.client import AsyncClient, Entry, Outbox
from headgate.core.outbox import EntryState
from headgate.planner import virtual
from headgate.planner.virtual import World

EXAMPLES = int(os.environ.get("HEADGATE_MACHINE_EXAMPLES", "8"))
MEMORY = Path("/dev/shm")  # No power is cut here: the disk need not be waited for.
YEARS = 10_000.0
RETENTION = timedelta(hours=72)
FAULTS = st.sampled_from(
    [
        Fault.NONE,
        Fault.CUT_BEFORE,
        Fault.CUT_AFTER,
        Fault.FULL,
        Fault.AWAY,
        Fault.WRONG,
        Fault.BROKEN,
        Fault.IN_PROGRESS,
        Fault.PROXY,
    ]
)


class Killed(BaseException):
    """The process ends here."""


class Fate:
    """Counts the steps of a flush: each request and each write, before and after. At 0 the process dies."""

    def __init__(self, steps: int | None) -> None:
        self._steps = steps

    def step(self) -> None:
        if self._steps is not None:
            self._steps -= 1
            if self._steps < 0:
                raise Killed


class Mortal:
    """A part that passes everything on and dies by fate around one of its methods."""

    def __init__(self, part: Any, method: str, fate: Fate) -> None:
        self._part, self._method, self._fate = part, method, fate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if name != self._method:
            return found
        return self._async(found) if asyncio.iscoroutinefunction(found) else self._plain(found)

    def _plain(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._fate.step()
            answer = method(*args, **kwargs)
            self._fate.step()
            return answer

        return call

    def _async(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._fate.step()
            answer = await method(*args, **kwargs)
            self._fate.step()
            return answer

        return call


class OutboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self._path = Path(self._folder.name) / "outbox.db"
        self._desk = Outbox(self._path)
        """A process that only adds, looks and decides."""
        self._now = datetime(2026, 1, 1, tzinfo=UTC)
        self._stub = Stub(after_s=1.0)
        self._taken_at: dict[str, datetime] = {}
        self._names: dict[int, str] = {}
        self._forced: Counter[str] = Counter()
        """Entries that a person sent again: those may be there once more, and out of order."""
        self._discarded: set[str] = set()

    # ---- What happens ------------------------------------------------------------------------------------

    @rule(streams=st.text("ab", min_size=1, max_size=3))
    def add(self, streams: str) -> None:
        for stream in streams:
            name = f"{stream}{len(self._names):04}"
            self._names[self._desk.add("t", name, stream=stream).id] = name

    @rule(faults=st.lists(FAULTS, max_size=6), steps=st.none() | st.integers(0, 20), two=st.booleans())
    def flush(self, faults: list[Fault], steps: int | None, two: bool) -> None:
        self._stub.faults.extend(faults)
        self._live(self._flushing(Fate(steps), two=two))
        self._stub.faults.clear()

    @rule(hours=st.sampled_from([1, 61, 80]))
    def an_answer_is_lost_and_time_passes(self, hours: int) -> None:
        self.flush([Fault.CUT_AFTER], None, two=False)
        self.time_passes(hours)

    @rule()
    def flush_without_network(self) -> None:
        async def main(world: World) -> None:
            with Outbox(self._path, clock=world.clock, keep_days=YEARS) as outbox:
                async with AsyncClient("http://127.0.0.1:9", clock=world.clock) as client:
                    assert (await outbox.flush(client)).sent == 0

        self._live(main)

    @rule(hours=st.sampled_from([1, 30, 61, 80]))
    def time_passes(self, hours: int) -> None:
        """The gateway forgets keys that are too old."""
        self._now += timedelta(hours=hours)
        for key, taken_at in self._taken_at.items():
            if self._now - taken_at > RETENTION:
                self._stub.by_key.pop(key, None)

    @precondition(lambda self: self._in(EntryState.FAILED))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self._in(EntryState.FAILED)))
        self._desk.retry(entry.id)
        self._forced[self._names[entry.id]] += 1

    @precondition(lambda self: self._in(EntryState.WAITING, EntryState.FAILED))
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self._in(EntryState.WAITING, EntryState.FAILED)))
        self._desk.discard(entry.id)
        self._discarded.add(self._names[entry.id])

    # ---- What must be true -------------------------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        entries = self._entries()
        for name, count in Counter(self._stub.inputs).items():
            assert count <= 1 + self._forced[name], f"{name} became {count} jobs"
        for stream in "ab":
            sent = [name for name in self._stub.inputs if name[0] == stream and not self._forced[name]]
            assert sent == sorted(sent), "out of order"
        jobs = {job["id"]: job["input"] for job in self._stub.jobs}
        for entry in entries:
            standing = entry.standing
            if standing.state is EntryState.SENT:
                assert jobs[standing.server_id] == self._names[entry.id]
            if standing.state is EntryState.FAILED:
                assert standing.failures == 3 or "outcome unknown" in str(standing.reason)
        assert {self._names[entry.id] for entry in entries} | self._discarded == set(self._names.values())

    def teardown(self) -> None:
        """At last the gateway is there and well: whatever still waits arrives."""
        try:
            self._live(self._flushing(Fate(None), two=False))
            assert not [entry for entry in self._entries() if entry.state is EntryState.WAITING]
            self.all_is_well()
        finally:
            self._desk.close()
            self._folder.cleanup()

    # ---- How ---------------------------------------------------------------------------------------------

    def _flushing(self, fate: Fate, *, two: bool) -> Callable[[World], Any]:
        async def main(world: World) -> None:
            boxes = [Outbox(self._path, clock=world.clock, keep_days=YEARS) for _ in range(1 + two)]
            async with (
                listening(self._stub),
                AsyncClient(self._stub.url, clock=world.clock, timeout_s=30.0) as client,
            ):
                client.line = Mortal(client.line, "ask", fate)  # type: ignore[assignment]
                for box in boxes:
                    box._file = Mortal(box._file, "write", fate)  # type: ignore[assignment]
                try:
                    await asyncio.gather(*(box.flush(client) for box in boxes))
                except* Killed:
                    pass
                finally:
                    for box in boxes:
                        box.close()

        return main

    def _live(self, main: Callable[[World], Any]) -> None:
        async def timed(world: World) -> float:
            await main(world)
            return world.clock.now()

        self._now += timedelta(seconds=virtual.run(timed, epoch=self._now))
        for key in self._stub.by_key:
            self._taken_at.setdefault(key, self._now)

    def _entries(self) -> list[Entry]:
        return list(self._desk.list())

    def _in(self, *states: EntryState) -> list[Entry]:
        return [entry for entry in self._entries() if entry.state in states]


OutboxMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=20,
    deadline=None,
    derandomize="HEADGATE_MACHINE_EXAMPLES" not in os.environ,
)
TestOutboxMachine = OutboxMachine.TestCase
