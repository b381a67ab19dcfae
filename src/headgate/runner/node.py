"""One process as a node: a random name per start, a beat raised for all its claims at once, a lock on a file.

A free lock proves to others on this machine that the process is gone. All others judge by the beat (`core.liveness`).
"""

import asyncio
import contextlib
import fcntl
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from headgate.core.errors import StoreUnavailable
from headgate.core.liveness import Beats
from headgate.core.ports.claims import Renewal
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
        self._lock: tuple[int, Path] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._renewed_at = -math.inf
        self._beats = Beats(lease_s)
        self._due = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._unlisten: Callable[[], None] = lambda: None

    @property
    def joined(self) -> bool:
        return self._renewing is not None

    def lease_left_s(self) -> float:
        """How long no other node can have declared this one dead. It runs on while the machine is suspended."""
        return self._renewed_at + self._lease_s - self._clock.since_boot()

    async def hold(self) -> None:
        """Return while our lease runs; if it has ended, renew it now. Raises `StoreUnavailable`."""
        if self.lease_left_s() <= 0:
            await self._renew()

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
                # Its lock goes all the same: this is no crash, and the others find out that it is silent.
                logger.warning("node %s could not leave: %s", self.id, error)
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
        name = f"node_{self._new_id()}"
        lock = self._folder / f"{name}{LOCK_SUFFIX}"
        with _writing(self._folder):
            # Missing at the first start, or removed since.
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(lock), lock
        sent_at = self._clock.since_boot()
        await self._store.join(name)
        self.id, self._renewed_at = name, sent_at

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
            except Exception as error:
                # A node that stops renewing is dead to all others: whatever this was, it is tried again.
                self._beats.restart()
                rest_s = min(RETRY_S, self._lease_s / 10)
                if not isinstance(error, StoreUnavailable):
                    logger.exception("the lease of node %s could not be renewed", self.id)
                elif not failed:
                    logger.warning("the lease of node %s could not be renewed: %s", self.id, error)
                failed = True
            else:
                rest_s, failed = self._lease_s / RENEWALS_PER_LEASE, False

    async def _renew(self) -> None:
        async with self._one_at_a_time:
            silent = await self._raise_beat()
        await self._follow_up(silent)

    async def _raise_beat(self) -> Sequence[tuple[str, int]]:
        """Returns the nodes that are silent. A node that was declared dead joins again under a new name."""
        sent_at = self._clock.since_boot()
        lived = self._renewed_at > -math.inf
        renewal = await self._store.renew(self.id) if lived else Renewal(alive=False)
        if renewal.alive:
            self._renewed_at = sent_at
        else:
            if lived:
                self._renewed_at = -math.inf
                logger.warning(
                    "node %s was declared dead by another node; its jobs run again elsewhere", self.id
                )
                self.on_lost()
            await self._join()
        for job_id, lease in renewal.cancelled:
            self.on_cancel(job_id, lease)
        return self._beats.read(renewal.beats, sent_at=sent_at, at=self._clock.since_boot())

    async def _follow_up(self, silent: Sequence[tuple[str, int]]) -> None:
        """What a renewal is the time for. It must neither fail the renewal nor delay the next one for long."""
        try:
            async with asyncio.timeout(self._lease_s / 4):
                for renewed in self.on_renewed:
                    await renewed()
                for node, beat in silent:
                    if await self._store.bury_silent(node, beat):
                        logger.warning(
                            "node %s was silent for %g s and is declared dead", node, self._lease_s
                        )
                await self.bury_neighbours()
        except (StoreUnavailable, TimeoutError) as error:
            logger.info(
                "node %s goes on after its next renewal: %s", self.id, str(error) or "the store is slow"
            )
        except Exception:
            logger.exception("node %s: what follows a renewal failed", self.id)

    def _hear(self, health: StoreHealth, _error: str) -> None:
        if health is StoreHealth.OK:
            self._due.set()

    def _unlock(self) -> None:
        if self._lock is not None:
            fd, path = self._lock
            self._lock = None
            os.close(fd)
            path.unlink(missing_ok=True)


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
