"""A process that goes through every verb that writes, in one breath, until a failpoint kills it.

What it knows for sure it writes down in the ledger `done`. Names of jobs begin with the run's own name, so that
whoever comes later can tell what every job was for.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest
from crash.ledger import Ledger
from crash.tasks import Worker

import headgate
from headgate.core.access import AccessTerms
from headgate.core.idempotency import KeyClaim, Unknown
from headgate.core.job import NewJob
from headgate.core.record import RecordWrite
from headgate.gateway import Gateway
from headgate.machine.ids import random_id
from headgate.runner.access_keys import AccessKeys
from headgate.runner.submission import Submission
from headgate.runner.upkeep import Upkeep

VERBS: Final = (
    *("migrate", "join", "accept", "put_records", "delete_record"),
    *("reserve", "mark_sent", "finish_key", "free_key", "keep_answer"),
    *("add_access_key", "revoke_access_key", "key_check", "add_webhook_secret"),
    *("expire", "replay", "discard", "cancel", "cancel_batch", "prune", "prune_files"),
    *("bury_silent", "forget_nodes", "purge_keys"),
    *("make_due", "make_deferred_due"),
    *("claim", "promote", "save_step", "save_progress", "settle"),
    *("bury_dead", "cool", "revive", "renew", "leave"),
)
"""Every verb that commits, in the order in which a run first gets there."""
LEASE_S: Final = 1.0
USER: Final = {"role": "user", "content": "hello"}
MONTHS_S: Final = 90 * 86_400.0
LIST_SIZE: Final = 3


async def gauntlet(*, settings: Mapping[str, Any], ledgers: str, name: str, before: str | None) -> None:
    """`before` is the name of the run before this one."""
    async with headgate.open(settings, env={}, tasks=Worker(ledgers).tasks()) as gateway:
        run = Run(gateway, Ledger(ledgers, "done"), name)
        await run.take_in()
        await run.write_records()
        await run.call_once(name if before is None else before)
        await run.call_once(name)
        await run.call_in_vain()
        await run.make_keys()
        await run.rotate_secret()
        await run.bury_and_raise()
        await run.forget_what_is_old()
        await gateway.work()
        await run.work()
        await run.revive()
        # Long enough for a renewal.
        await asyncio.sleep(LEASE_S / 2)
    Ledger(ledgers, "through").add(name=name)


class Run:
    """One way through."""

    def __init__(self, gateway: Gateway, done: Ledger, name: str) -> None:
        self._gateway = gateway
        self._done = done
        self._name = name

    async def take_in(self) -> None:
        """Accept: alone, with a record, and as a list with a key."""
        record = headgate.record("inputs", self._name, {"of": self._name})
        one = await self._submit("effect", thinks=True, run_s=0.01, records=[record])
        listed = [self._order("listed")] * LIST_SIZE
        key = f"{self._name} list"
        many = await self._gateway.jobs.submit_many(listed, idempotency_key=key)
        self._done.add(what="accepted", ids=[one.id, *(handle.id for handle in many)])
        again = await self._gateway.jobs.submit_many(listed, idempotency_key=key)
        assert [handle.id for handle in again] == [handle.id for handle in many]

    async def write_records(self) -> None:
        records = self._gateway.records
        await records.put("kept", self._name, {"of": self._name}, unique_key=self._name)
        self._done.add(what="kept", name=self._name)
        await self._submit_what_exists()
        await records.put("dropped", self._name, {"of": self._name})
        assert await records.delete("dropped", self._name)
        self._done.add(what="dropped", name=self._name)

    async def _submit_what_exists(self) -> None:
        """A submission whose record exists already: its key keeps that answer."""
        record = headgate.record("kept", f"{self._name} again", {}, unique_key=self._name)
        for replayed in (False, True):
            with pytest.raises(headgate.RecordExists) as known:
                await self._submit("never", records=[record], idempotency_key=f"{self._name} exists")
            assert (known.value.record_id, known.value.replayed) == (self._name, replayed)

    async def make_keys(self) -> None:
        """A key for callers over HTTP, and another that is revoked."""
        keys = AccessKeys(self._gateway.durable, random_id)
        for what in ("key", "revoked key"):
            await keys.create(AccessTerms(name=f"{self._name} {what}"))
            self._done.add(what="key", name=f"{self._name} {what}")
        await keys.revoke(f"{self._name} revoked key")
        self._done.add(what="revoked", name=f"{self._name} revoked key")

    async def rotate_secret(self) -> None:
        """The first run makes the key that the secrets are encrypted with; all others must find the same."""
        secret = await self._gateway.webhooks.rotate()
        self._done.add(what="rotated", secret=secret)

    async def call_once(self, key: str) -> None:
        """Reserve, mark, finish: a direct call with a key, perhaps one that somebody died at."""
        reply = await self._gateway.complete(model="simulated/instant", messages=[USER], idempotency_key=key)
        self._done.add(what="answered", key=key, request_id=reply.request_id)

    async def call_in_vain(self) -> None:
        """A call that fails frees its key."""
        try:
            await self._gateway.complete(
                model="simulated/down",
                messages=[USER],
                idempotency_key=f"{self._name} in vain",
                retry=headgate.RetryPolicy(max_attempts=1),
            )
        except headgate.CallFailed:
            return
        raise AssertionError("the upstream that is down has answered")

    async def bury_and_raise(self) -> None:
        """Expire two jobs; one is replayed, the other discarded. Others are cancelled before they run, alone and as a batch."""
        late = await self._submit("late", expires_after_s=0.005)
        unloved = await self._submit("unloved", expires_after_s=0.005)
        await asyncio.sleep(0.01)
        await self._upkeep.expire()
        self._done.add(what="expired", ids=[late.id, unloved.id])
        await self._gateway.dead_letters.replay(late.id)
        self._done.add(what="replayed", ids=[late.id])
        await self._gateway.dead_letters.discard(unloved.id)
        self._done.add(what="discarded", ids=[unloved.id])
        early = await self._submit("early", run_at=time.time() + 2)
        await self._gateway.jobs.make_due(early.id)
        await self._gateway.durable.store.make_deferred_due(["work"], now=time.time())
        self._done.add(what="accepted", ids=[early.id])
        unwanted = await self._submit("unwanted")
        await unwanted.cancel()
        self._done.add(what="cancelled", ids=[unwanted.id])
        line = msgspec.convert(self._order("a line"), Submission)
        batch_id = f"batch {self._name}"
        lines = await self._gateway.jobs.submit_inside(
            [line] * LIST_SIZE, tenant="local", batch_id=batch_id, inside=False
        )
        store = self._gateway._durable.store
        await store.cancel_batch(batch_id, tenant="local", now=time.time(), limit=LIST_SIZE)
        self._done.add(what="cancelled", ids=[handle.id for handle in lines])

    async def forget_what_is_old(self) -> None:
        """A job, a file and a key of long ago are pruned and purged, and a node that fell silent is forgotten."""
        store = self._gateway._durable.store
        long_ago = time.time() - MONTHS_S
        job = NewJob(
            id=f"old-{self._name}", task="effect", input=b"{}", run_at=long_ago, expires_at=time.time() + 60
        )
        await store.accept([job], now=long_ago)
        await store.cancel(job.id, now=long_ago)
        await self._upkeep.prune()
        self._done.add(what="pruned", ids=[job.id])
        file = RecordWrite(collection="files", id=f"file-{0:012}{self._name}", body=b'{"bytes":0}')
        await store.put_records("local", [file], now=long_ago)
        await self._gateway.files.sweep()
        self._done.add(what="pruned file", name=file.id)
        key = KeyClaim(endpoint="old", key=self._name, request_hash=b"-", expires_at=long_ago + 1)
        await store.reserve("local", key, node="unknown", unknown=Unknown.RERUN, now=long_ago)
        await store.join(f"silent-{self._name}")
        await store.bury_silent(f"silent-{self._name}", 0)
        await self._upkeep.purge()

    async def work(self) -> None:
        """Claim, promote, settle; and stop one that runs."""
        soon = await self._submit("soon", run_at=time.time() + 0.02)
        endless = await self._submit("endless", run_s=60.0, only_in=os.getpid())
        await soon.wait(timeout=20)
        while (await endless.job()).state is headgate.JobState.PENDING:  # noqa: ASYNC110 - nobody tells of a start
            await asyncio.sleep(0.005)
        await endless.cancel()
        self._done.add(what="cancelled", ids=[endless.id])
        await endless.wait(timeout=20)

    async def revive(self) -> None:
        """An exhausted job comes back after its cool-down, which is short here."""
        failing = await self._submit("failing", fails=True, max_attempts=1)
        await failing.wait(timeout=20)
        await self._gateway._durable.store.cool([failing.id], until=time.time() + 0.01)
        await asyncio.sleep(0.02)
        await self._upkeep.revive()
        self._done.add(what="revived", ids=[failing.id])
        await failing.wait(timeout=20)

    @property
    def _upkeep(self) -> Upkeep:
        """Its duties, at once instead of in their own time."""
        return self._gateway._durable._upkeep

    def _order(self, what: str, **work: Any) -> dict[str, Any]:
        return {"task": "effect", "input": work, "metadata": {"name": self._name, "what": what}}

    async def _submit(self, what: str, **asked: Any) -> headgate.JobHandle:
        of_the_job = {"records", "expires_after_s", "run_at", "max_attempts", "idempotency_key"} & set(asked)
        options = {name: asked.pop(name) for name in of_the_job}
        return await self._gateway.jobs.submit(**self._order(what, **asked), **options)
