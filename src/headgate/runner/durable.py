"""The durable half of a gateway: store, node, worker and upkeep, started when first needed and stopped in order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from headgate.core import events
from headgate.core.errors import StoreUnavailable
from headgate.core.idempotency import IdempotencyRules, KeyClaim, key_claim
from headgate.core.job import FollowUps, nothing_follows
from headgate.core.job_rules import JobRules
from headgate.core.ports.calls import Calls
from headgate.core.ports.clock import Chance, Clock
from headgate.core.ports.store import Store, StoreHealth
from headgate.machine.disk import Quota
from headgate.runner.attempt import Attempts
from headgate.runner.key_meters import KeyMeters
from headgate.runner.node import Node
from headgate.runner.room import Room
from headgate.runner.settling import Emit, Settling
from headgate.runner.submission import Intake
from headgate.runner.tasks import TaskTable
from headgate.runner.upkeep import Upkeep
from headgate.runner.watch import Watch
from headgate.runner.worker import Worker

logger = logging.getLogger("headgate")


class Durable:
    """Opens the store at the first durable call; a worker only where one was asked for."""

    def __init__(
        self,
        store: Store,
        tasks: TaskTable,
        calls: Calls,
        *,
        rules: JobRules,
        idempotency: IdempotencyRules,
        quota: Quota,
        folder: Path,
        clock: Clock,
        chance: Chance,
        new_id: Callable[[], str],
        emit: Emit,
        follow_ups: FollowUps = nothing_follows,
        check_webhook: Callable[[str], None] = lambda _url: None,
        check_key: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.store = store
        self.tasks = tasks
        self.rules, self.idempotency, self.quota = rules, idempotency, quota
        self.started = False
        self.node = Node(store, folder=folder, clock=clock, new_id=new_id, lease_s=rules.lease_s)
        self.watch = Watch(store, clock)
        self.room = Room(store, rules, clock)
        self.intake = Intake(
            tasks, rules=rules, check_model=calls.check_model, check_webhook=check_webhook, new_id=new_id
        )
        self._settling = Settling(
            store,
            tasks,
            rules=rules,
            clock=clock,
            chance=chance,
            emit=emit,
            ended=self.watch.ended,
            follow_ups=follow_ups,
        )
        self._upkeep = Upkeep(
            store, self.node, self._settling, calls, rules=rules, clock=clock, chance=chance
        )
        self.meters = KeyMeters(store, clock)
        self._attempts = Attempts(tasks, store, calls, self.meters, clock=clock, new_id=new_id)
        self._calls = calls
        self.clock = clock
        self._emit = emit
        self._check_key = check_key
        self._worker: Worker | None = None
        self._starting = asyncio.Lock()
        self._closed = self._opened = False

    async def start(self) -> None:
        """Open the store; enough to submit and to look. Calling it again costs nothing."""
        if self.started and not self._closed:
            return
        async with self._starting:
            if self._closed:
                raise StoreUnavailable(f"{self.store.name} is closed")
            if not self._opened:
                await self.store.open()
                self._opened = True
                self.store.on_health(self._tell_health)
            self.started = True

    async def join(self) -> None:
        """Be a node of the store, as whoever holds jobs or keys must. Refused with another secret key than the store's."""
        await self.start()
        async with self._starting:
            if not self.node.joined:
                if self._check_key is not None:
                    await self._check_key()
                await self.node.start()

    async def work(self) -> None:
        """Run jobs in this process, and do the upkeep."""
        self.tasks.load_entry_points()
        await self.join()
        if self._worker is None:
            self._worker = Worker(
                self.store,
                self.node,
                self._calls,
                self._attempts,
                self._settling,
                rules=self.rules,
                clock=self.clock,
            )
            if tasks := self.tasks.due_on_start():
                await self.store.make_deferred_due(tasks, now=self.clock.utc().timestamp())
            self._worker.start()
            self._upkeep.start()

    def key_claim(self, key: str, body: bytes, *, endpoint: str, now: float) -> KeyClaim:
        """An idempotency key for this request, to be taken together with what it asks for."""
        return key_claim(
            key,
            body,
            secret=self.store.secret,
            endpoint=endpoint,
            expires_at=now + self.idempotency.retention_s,
        )

    @property
    def running(self) -> int:
        """Jobs that run in this process now."""
        return 0 if self._worker is None else self._worker.running

    def stop_here(self, job_id: str) -> None:
        """If this job runs in this process, stop it without waiting for the next renewal."""
        if self._worker is not None:
            self._worker.cancel(job_id)

    async def stop_working(self, drain_s: float) -> None:
        """No more claims; what runs has this long to finish, then goes back uncounted."""
        if self._worker is not None:
            await self._worker.stop(drain_s)
            await self._upkeep.stop()
            self._worker = None

    async def aclose(self) -> None:
        self._closed = True
        await self.stop_working(0.0)
        await self.watch.aclose()
        await self.node.stop()
        if self._opened:
            await self.store.aclose()

    def _tell_health(self, health: StoreHealth, error: str) -> None:
        self._emit(events.StoreChanged(store=self.store.name, health=str(health), error=error))
