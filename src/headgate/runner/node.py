"""One process as a node: a random name per start, a beat raised for all its claims at once, a lock on a file.

A free lock proves to others on this machine that the process is gone. All others judge by the beat (`core.liveness`).
"""

import asyncio
import contextlib
import fcntl
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from headgate.core.errors import StoreUnavailable
from headgate.core.liveness import Beats
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store, StoreHealth

logger = logging.getLogger("headgate")
RENEWALS_PER_LEASE: Final = 3
RETRY_S: Final = 1.0
"""How soon a renewal that failed is tried again, at most: the others judge by it when the store returns."""
LOCK_SUFFIX: Final = ".lock"


class Node:
    """The process, as the store knows it."""

    def __init__(
        self, store: Store, *, folder: Path, clock: Clock, new_id: Callable[[], str], lease_s: float
    ) -> None:
        self.id = ""
        self.on_cancel: Callable[[str, int], None] = lambda _job_id, _lease: None
        self.on_lost: Callable[[], None] = lambda: None
        self.on_renewed: list[Callable[[], Awaitable[None]]] = []
        """Awaited after each renewal, also after the node had to join again under a new name."""
        self._store = store
        self._folder = folder
        self._clock = clock
        self._new_id = new_id
        self._lease_s = lease_s
        self._lock: int | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._renewed_at = -math.inf
        self._beats = Beats(lease_s)
        self._due = asyncio.Event()
        self._unlisten: Callable[[], None] = lambda: None

    @property
    def joined(self) -> bool:
        return self._renewing is not None

    def lease_left_s(self) -> float:
        """How long no other node can have declared this one dead. It runs on while the machine is suspended."""
        return self._renewed_at + self._lease_s - self._clock.since_boot()

    async def start(self) -> None:
        """Bury the dead of this machine, join, and keep renewing."""
        await self.bury_neighbours()
        self._warn_of_neighbours()
        await self._join()
        self._unlisten = self._store.on_health(self._hear)
        self._renewing = asyncio.create_task(self._live(), name="headgate node renewal")

    async def stop(self) -> None:
        unlisten, self._unlisten = self._unlisten, lambda: None
        unlisten()
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        if self.id:
            try:
                await self._store.leave(self.id)
            except StoreUnavailable as error:
                # The lock file stays, and is free once this process ends: it proves the death to the next one here.
                logger.warning("node %s could not leave: %s", self.id, error)
                self._unlock(remove=False)
        self._unlock()

    def now(self) -> float:
        return self._clock.utc().timestamp()

    async def bury_neighbours(self) -> None:
        """A node of this folder whose lock is free is dead, whatever its beat says."""
        free = [lock for lock in self._folder.glob(f"*{LOCK_SUFFIX}") if _is_free(lock)]
        if not free:
            return
        buried = await self._store.bury_dead([lock.name.removesuffix(LOCK_SUFFIX) for lock in free])
        if buried:
            logger.info("%d dead node(s) found on this machine; their jobs are taken over", buried)
        with _writing(self._folder):
            for lock in free:
                lock.unlink(missing_ok=True)

    async def _join(self) -> None:
        self._unlock()
        self.id = f"node_{self._new_id()}"
        with _writing(self._folder):
            # Missing at the first start, or removed since.
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self._path(self.id))
        sent_at = self._clock.since_boot()
        await self._store.join(self.id)
        self._renewed_at = sent_at

    def _warn_of_neighbours(self) -> None:
        others = [pid for pid in pids_at_work(self._folder) if pid != os.getpid()]
        if others:
            logger.warning(
                "%s is shared with %s %s: they take turns with the jobs and write into the same logs,"
                " but each has its own gates, so an upstream gets the calls of all together",
                self._folder.parent,
                "process" if len(others) == 1 else "processes",
                ", ".join(map(str, others)),
            )

    async def _live(self) -> None:
        """Renew three times per lease, soon again after a failure, and at once when the store returns."""
        rest_s, failed = self._lease_s / RENEWALS_PER_LEASE, False
        while True:
            self._due.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._due.wait()
            try:
                await self._renew()
                await self.bury_neighbours()
                rest_s, failed = self._lease_s / RENEWALS_PER_LEASE, False
            except Exception as error:
                # A node that stops renewing is dead to all others: whatever this was, it is tried again.
                self._beats.restart()
                rest_s = min(RETRY_S, self._lease_s / 10)
                if not isinstance(error, StoreUnavailable):
                    logger.exception("the lease of node %s could not be renewed", self.id)
                elif not failed:
                    logger.warning("the lease of node %s could not be renewed: %s", self.id, error)
                failed = True

    async def _renew(self) -> None:
        sent_at = self._clock.since_boot()
        renewal = await self._store.renew(self.id)
        if renewal.alive:
            self._renewed_at = sent_at
        else:
            logger.warning(
                "node %s was declared dead: it was silent for %g s. Its jobs run again on other nodes.",
                self.id,
                self._lease_s,
            )
            self._renewed_at = -math.inf
            self.on_lost()
            await self._join()
        for job_id, lease in renewal.cancelled:
            self.on_cancel(job_id, lease)
        silent = self._beats.read(renewal.beats, sent_at=sent_at, at=self._clock.since_boot())
        for renewed in self.on_renewed:
            await renewed()
        for node, beat in silent:
            if await self._store.bury_silent(node, beat):
                logger.warning("node %s was silent for %g s and is declared dead", node, self._lease_s)

    def _hear(self, health: StoreHealth, _error: str) -> None:
        if health is StoreHealth.OK:
            self._due.set()

    def _path(self, node: str) -> Path:
        return self._folder / f"{node}{LOCK_SUFFIX}"

    def _unlock(self, *, remove: bool = True) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            if remove:
                self._path(self.id).unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A disk that is full or read-only is as bad as a database that is."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"{folder} cannot be written ({error.strerror or error}): whoever serves or works keeps a lock there;"
            " make it writable, or set another data_dir"
        ) from error


def _locked(path: Path) -> int:
    """The file gets its name once it is locked: a neighbour must never see it free while we live. It holds our pid."""
    draft = path.with_suffix(".new")
    fd = os.open(draft, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(fd, b"%d\n" % os.getpid())
    draft.rename(path)
    return fd


def pids_at_work(folder: Path) -> list[int]:
    """The processes of this machine that are nodes of this folder now."""
    found = set()
    for lock in folder.glob(f"*{LOCK_SUFFIX}"):
        # It may be gone by now, or be another version's, without a number.
        with contextlib.suppress(OSError, ValueError):
            if not _is_free(lock):
                found.add(int(lock.read_text()))
    return sorted(found)


def _is_free(path: Path) -> bool:
    """True when nobody holds the lock any more; a missing file proves nothing and counts as held."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
