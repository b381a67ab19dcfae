"""Jobs in the states that tests need, made by nothing but the port's own verbs. Time is a number: NOW and later."""

import itertools
from datetime import UTC, datetime
from typing import Any

from stores_under_test import nodes_of

from headgate.core.access import AccessKey, KeptKey
from headgate.core.failures import Failure, FailureKind
from headgate.core.idempotency import KeyClaim, Unknown, Verdict
from headgate.core.job import Claim, Job, JobState, NewJob, Settled, Settlement
from headgate.core.job_rules import Crashed, Failed, JobRules, Outcome, settle
from headgate.core.ports.claims import Want
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import Store
from headgate.core.record import RecordWrite
from headgate.core.retry import Jitter, RetryPolicy

NOW = 1_700_000_000.0
EVER = NOW + 1e9
LEASE_S = 30.0
RULES = JobRules(revive_after_s=3600.0, retry=RetryPolicy(first_wait_s=5.0, jitter=Jitter.NONE))
TRANSIENT = Failed(Failure(kind=FailureKind.TRANSIENT, status=503))
REJECTED = Failed(Failure(kind=FailureKind.REJECTED, status=400))
_numbers = itertools.count(1)


def a_job(job_id: str | None = None, **changes: Any) -> NewJob:
    """A job that is due NOW. Without a name it gets one; later ones sort higher, as real ids do."""
    usual: dict[str, Any] = {
        "id": job_id or f"job-{next(_numbers):08}",
        "task": "summarise",
        "input": b'{"text":"hello"}',
        "run_at": NOW,
        "expires_at": NOW + 10_000,
    }
    return NewJob(**{**usual, **changes})


def a_key(name: str = "k", body: bytes = b"body", **changes: Any) -> KeyClaim:
    usual: dict[str, Any] = {"endpoint": "POST /jobs", "expires_at": NOW + 3600}
    return KeyClaim(key=name, request_hash=body, **{**usual, **changes})


def a_record(record_id: str, **changes: Any) -> RecordWrite:
    return RecordWrite(**{"collection": "pages", "id": record_id, "body": b'{"seen":true}', **changes})


def an_access_key(key_id: str = "k", **changes: Any) -> KeptKey:
    """A key as a store gets it. Its digest is made of its id."""
    usual: dict[str, Any] = {"name": "app", "last_four": "abcd", "created_at": at(NOW)}
    return KeptKey(AccessKey(id=key_id, **{**usual, **changes}), key_id.encode().ljust(32, b"-"))


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


async def join(store: Store, *nodes: str) -> None:
    for node in nodes or ("n1",):
        await store.join(node)


async def take(
    store: Store,
    model: str = "",
    places: int = 100,
    *,
    node: str = "n1",
    tenant: str = "local",
    suspects: int = 0,
    now: float = NOW,
) -> list[Claim]:
    return await store.claim([Want(model, places, tenant)], node=node, suspects=suspects, now=now)


async def take_named(store: Store, places: int = 100, *, node: str = "n1", now: float = NOW) -> list[Claim]:
    """So many of each line that a look names."""
    lines = (await store.ready(now=now)).lines
    wants = [Want(model, places, tenant) for tenant, models in lines.items() for model in models]
    return await store.claim(wants, node=node, suspects=0, now=now)


async def take_suspects(store: Store, *, node: str = "n1", now: float = NOW) -> list[Claim]:
    return await store.claim([], node=node, suspects=100, now=now)


def after(claim: Claim, outcome: Outcome, *, now: float = NOW) -> Settlement:
    return settle(claim, outcome, rules=RULES, now=now, chance=0.5)


async def end(store: Store, claim: Claim, outcome: Outcome, *, now: float = NOW) -> Settled:
    (answer,) = await store.settle([after(claim, outcome, now=now)], now=now)
    return answer


async def running(store: Store, job_id: str, *, node: str = "n1", now: float = NOW, **changes: Any) -> Claim:
    """A job in the hands of a node. It has a model of its own, so that nobody else is claimed."""
    changes.setdefault("model", f"model of {job_id}")
    await join(store, node)
    await store.accept([a_job(job_id, **changes)], now=now)
    (claim,) = await take(
        store, changes["model"], 1, node=node, tenant=changes.get("tenant", "local"), now=now
    )
    return claim


async def exhausted(store: Store, job_id: str, *, now: float = NOW, **changes: Any) -> Claim:
    """A dead letter that may come back by itself after an hour; the claim is its last."""
    claim = await running(store, job_id, now=now, **{"max_attempts": 1, **changes})
    assert await end(store, claim, TRANSIENT, now=now) is Settled.APPLIED
    return claim


async def suspect(store: Store, job_id: str, **changes: Any) -> Claim:
    """A job that was running at two crashes; the claim is the second of the lost ones."""
    claim = await running(store, job_id, **changes)
    await end(store, claim, Crashed())
    (again,) = await take(store, claim.model, 1, tenant=claim.tenant)
    await end(store, again, Crashed())
    return again


async def found(store: Store, job_id: str) -> Job:
    job = await store.find(job_id)
    assert job is not None, f"{job_id} is gone"
    return job


async def state_of(store: Store, job_id: str) -> JobState:
    return (await found(store, job_id)).state


async def reserve(
    store: Store,
    claim: KeyClaim,
    *,
    node: str = "n1",
    now: float = NOW,
    unknown: Unknown = Unknown.RERUN,
    quota: int | None = None,
) -> Verdict:
    return await store.reserve("local", claim, node=node, unknown=unknown, now=now, quota=quota)


async def picture(store: Store, *, tenant: str = "local") -> dict[str, Any]:
    """All that can be seen without changing anything: equal pictures mean that nothing was written."""
    listed = await store.select(JobFilter(), limit=10_000)
    return {
        "jobs": [await store.find(job.id) for job in listed],
        "steps": {job.id: await store.steps(job.id) for job in listed},
        "count": await store.count(),
        "waiting": await store.waiting_by_tenant(),
        "ready": await store.ready(now=0.0),
        "lost": sorted(await store.lost(limit=1000), key=lambda one: one.claim.id),
        "to stop": sorted(await store.uncancelled(before=EVER, limit=1000), key=lambda claim: claim.id),
        "reviving": await store.revivable(now=EVER, limit=1000),
        "nodes": sorted(await nodes_of(store)),
        "records": await store.list_records(tenant, "pages", limit=10_000),
        "access keys": await store.access_keys(),
        "stored bytes": await store.stored_bytes(),
        "key check": await store.key_check(),
        "webhook secrets": await store.webhook_secrets(tenant, now=NOW),
    }
