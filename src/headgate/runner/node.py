"""One process as a node: a random identity per start, a lease renewed for all its claims at once, a lock on a file.

The lock tells others on this machine at once that a process is gone; the lease tells everybody else in time.
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
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store

logger = logging.getLogger("headgate")
RENEWALS_PER_LEASE: Final = 3
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
        self._store = store
        self._folder = folder
        self._clock = clock
        self._new_id = new_id
        self._lease_s = lease_s
        self._lock: int | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._renewed_at = -math.inf

    @property
    def joined(self) -> bool:
        return self._renewing is not None

    async def start(self) -> None:
        """Bury the dead of this machine, join, and keep renewing."""
        await self._bury_neighbours()
        self._tell_of_neighbours()
        await self._join()
        self._renewing = asyncio.create_task(self._renew(), name="headgate node renewal")

    async def stop(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        if self.id:
            try:
                await self._store.leave(self.id)
            except StoreUnavailable as error:
                logger.warning("node %s could not say goodbye (%s); its lease will run out", self.id, error)
        self._unlock()

    def lease_left_s(self) -> float:
        """By our own clock; 0 or less when it has run out, or before we have joined."""
        return self._renewed_at + self._lease_s - self._clock.now()

    def now(self) -> float:
        return self._clock.utc().timestamp()

    async def _join(self) -> None:
        self._unlock()
        self.id = f"node_{self._new_id()}"
        with _writing(self._folder):
            # The first time, or somebody has cleared it away meanwhile.
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self._path(self.id))
        await self._store.join(self.id, now=self.now(), lease_s=self._lease_s)
        self._renewed_at = self._clock.now()

    async def _bury_neighbours(self) -> None:
        """A node of this folder whose lock is free is dead, whatever its lease says."""
        free = [lock for lock in self._folder.glob(f"*{LOCK_SUFFIX}") if _is_free(lock)]
        buried = 0
        if free:
            nodes = [lock.name.removesuffix(LOCK_SUFFIX) for lock in free]
            buried = await self._store.bury_nodes(nodes, now=self.now())
        if buried:
            logger.info("%d dead node(s) found on this machine; their jobs are taken over", buried)
        with _writing(self._folder):
            for lock in free:
                lock.unlink(missing_ok=True)

    def _tell_of_neighbours(self) -> None:
        others = [pid for pid in pids_at_work(self._folder) if pid != os.getpid()]
        if others:
            logger.warning(
                "%s is shared with %s %s: they take turns with the jobs and write into the same logs,"
                " but each has its own gates, so an upstream gets the calls of all together",
                self._folder.parent,
                "process" if len(others) == 1 else "processes",
                ", ".join(map(str, others)),
            )

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(self._lease_s / RENEWALS_PER_LEASE)
            try:
                await self._renew_once()
            except StoreUnavailable as error:
                logger.warning("the lease of node %s could not be renewed: %s", self.id, error)
            except Exception:
                # Who stops renewing is dead to everybody else: whatever this was, it is tried again, loudly.
                logger.exception("the lease of node %s could not be renewed", self.id)

    async def stay_alive(self) -> None:
        """Before judging others: a process that stood still is late itself, and must not bury itself for it."""
        if self._clock.now() - self._renewed_at > self._lease_s / 2:
            await self._renew_once()

    async def _renew_once(self) -> None:
        asked_at = self._clock.now()
        renewal = await self._store.renew(self.id, now=self.now(), lease_s=self._lease_s)
        if not renewal.alive:
            logger.error(
                "node %s was declared dead: it was not heard of for %g s. What it ran goes to others.",
                self.id,
                self._lease_s,
            )
            self.on_lost()
            self._renewed_at = -math.inf
            await self._join()
        else:
            self._renewed_at = asked_at
        for job_id, lease in renewal.cancelled:
            self.on_cancel(job_id, lease)
        for hear in self.on_renewed:
            await hear()

    def _path(self, node: str) -> Path:
        return self._folder / f"{node}{LOCK_SUFFIX}"

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
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
