"""The one writer: a thread that drains its queue into one transaction and answers after COMMIT (group commit).

Under load every commit carries what came while the one before was on its way to the disk; a lone write goes at
once. An operation that fails takes nobody with it.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import apsw

from headgate.core.errors import StoreUnavailable
from headgate.core.ports.clock import Clock
from headgate.machine.sqlite.place import Place
from headgate.machine.sqlite.troubles import OF_THE_STORE, FilesRemoved
from headgate.stores import failpoints

logger = logging.getLogger("headgate")
T = TypeVar("T")
MOST_TOGETHER: Final = 1000
CLAIM: Final = "claim"
"""A claim ends its transaction: its jobs run while the next transaction is on its way."""
LONGEST_BATCH_S: Final = 0.05
"""A transaction takes no more on board after this long, so that the first in it need not wait for a crowd."""
LOOK_S: Final = 1.0
"""How often an idle writer checks that its files are still there."""


class Operation(Generic[T]):
    """Something to do inside the transaction, and who waits for it."""

    __slots__ = ("future", "loop", "run", "verb")

    def __init__(
        self,
        verb: str,
        run: Callable[[apsw.Connection], T],
        future: "asyncio.Future[T]",
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.verb = verb
        self.run = run
        self.future = future
        self.loop = loop


Answer = tuple[Operation[Any], Any, BaseException | None]


class Writer:
    """Owns the only connection that writes."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        *,
        place: Place,
        clock: Clock,
        on_trouble: Callable[[BaseException | None], None],
    ) -> None:
        self._connect = connect
        self._place = place
        self._clock = clock
        self._on_trouble = on_trouble
        self._queue: queue.SimpleQueue[Operation[Any] | None] = queue.SimpleQueue()
        self._connection: apsw.Connection | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._thread = threading.Thread(target=self._work, name="headgate-sqlite", daemon=True)
        self._thread.start()

    async def run(self, verb: str, operation: Callable[[apsw.Connection], T]) -> T:
        """Do this in a transaction; when it returns, it is on the disk."""
        if self._closed or self._thread is None:
            raise StoreUnavailable(f"{self._place.name} is {'closed' if self._closed else 'not open'}")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(Operation(verb, operation, future, loop))
        with self._clock.outside():
            return await future

    async def aclose(self) -> None:
        self._closed = True
        self._queue.put(None)
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    # ---- In the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._next_batch()
            while batch:
                answers = self._commit(batch)
                self._answer(answers)
                batch = batch[len(answers) :]
        self._look()
        self._reopen()

    def _next_batch(self) -> tuple[list[Operation[Any]], bool]:
        try:
            first = self._queue.get(timeout=LOOK_S)
        except queue.Empty:
            self._look()
            return [], False
        if first is None:
            return [], True
        batch = [first]
        while len(batch) < MOST_TOGETHER and batch[-1].verb != CLAIM:
            try:
                operation = self._queue.get_nowait()
            except queue.Empty:
                break
            if operation is None:
                return batch, True
            batch.append(operation)
        return batch, False

    def _commit(self, batch: list[Operation[Any]]) -> list[Answer]:
        """The first of them, as many as get done in time, in one transaction.

        If one of them fails after it has written, each goes in its own.
        """
        try:
            connection = self._ready_connection()
            connection.execute("begin immediate")
            until = time.monotonic() + LONGEST_BATCH_S
            answers: list[Answer] = []
            for operation in batch:
                answers.append(self._try(connection, operation))
                if time.monotonic() > until:
                    break
            self._finish(connection, {operation.verb for operation, _, _ in answers})
        except _WroteAndFailed:
            self._roll_back()
            return [answer for operation in batch for answer in self._alone(operation)]
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            self._roll_back()
            self._trouble(error)
            return [(operation, None, self._place.translated(error)) for operation in batch]
        self._on_trouble(None)
        return answers

    def _alone(self, operation: Operation[Any]) -> list[Answer]:
        try:
            connection = self._ready_connection()
            connection.execute("begin immediate")
            result = operation.run(connection)
            self._finish(connection, {operation.verb})
        except Exception as error:  # noqa: BLE001 - as above
            self._roll_back()
            if isinstance(error, OF_THE_STORE):
                self._trouble(error)
            return [(operation, None, self._place.translated(error))]
        return [(operation, result, None)]

    def _try(self, connection: apsw.Connection, operation: Operation[Any]) -> Answer:
        before = connection.total_changes()
        try:
            return operation, operation.run(connection), None
        except OF_THE_STORE:
            raise
        except Exception as error:
            if connection.total_changes() != before:
                raise _WroteAndFailed from error
            return operation, None, self._place.translated(error)

    def _finish(self, connection: apsw.Connection, verbs: set[str]) -> None:
        failpoints.reach(verbs, "before_commit")
        connection.execute("commit")
        # Before anybody is answered: what went into a file that nobody can open again is not accepted.
        self._place.check(connection)
        failpoints.reach(verbs, "after_commit")

    def _ready_connection(self) -> apsw.Connection:
        if self._connection is None:
            self._connection = self._connect()
        self._place.check(self._connection)
        return self._connection

    def _roll_back(self) -> None:
        if self._connection is None or not self._connection.in_transaction:
            return
        try:
            self._connection.execute("rollback")
        except apsw.Error:
            logger.exception(
                "%s: a transaction could not be rolled back; opening the file anew", self._place.name
            )
            self._reopen()

    def _look(self) -> None:
        if self._connection is None:
            return
        try:
            self._place.check(self._connection)
        except StoreUnavailable as error:
            self._trouble(error)

    def _trouble(self, error: Exception) -> None:
        if isinstance(error, FilesRemoved):
            self._save()
        elif not isinstance(error, apsw.BusyError | apsw.FullError):
            self._reopen()
        self._on_trouble(self._place.translated(error))

    def _save(self) -> None:
        """Tried again with every look and every operation, until no other process is in the way."""
        if self._connection is None:
            return
        try:
            self._place.save(self._connection)
        except apsw.Error as error:
            logger.warning("%s: not saved yet, so do not end this process: %s", self._place.name, error)
        else:
            self._reopen()

    def _reopen(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(apsw.Error):
                self._place.close(self._connection)
        self._connection = None

    def _answer(self, answers: list[Answer]) -> None:
        """One call per loop wakes everybody who waits there."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
        for answer in answers:
            by_loop.setdefault(answer[0].loop, []).append(answer)
        for loop, its_answers in by_loop.items():
            # A loop that was closed meanwhile has nobody left to tell.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_tell, its_answers)


class _WroteAndFailed(Exception):
    """An operation failed halfway: what it wrote must not be committed with the others."""


def _tell(answers: list[Answer]) -> None:
    for operation, result, error in answers:
        if operation.future.done():
            continue
        if error is None:
            operation.future.set_result(result)
        else:
            operation.future.set_exception(error)
