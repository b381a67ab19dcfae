"""A real store under every order of verbs hypothesis can think of, beside a reference in plain dictionaries.

Each rule asks both the same and compares the answers; after each step all that can be seen of the store must be
what the reference says. Time is a number; nothing sleeps. HEADGATE_MACHINE_EXAMPLES=5000 makes it a soak.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable
from typing import Any, ClassVar, TypeVar

import hypothesis.strategies as st
import msgspec
from conftest import Figure
from contracts.job_stage import EVER, LEASE_S, NOW, RULES, a_job, a_key, a_record
from contracts.reference import Reference
from contracts.reference_rows import WAITING
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from stores_under_test import Home, bytes_of_rows, nodes_of

from headgate.core.call import Lane
from headgate.core.errors import HeadgateError
from headgate.core.failures import Failure, FailureKind
from headgate.core.idempotency import KeyClaim, Run, Unknown
from headgate.core.job import Claim, Edit, Ended, NewJob
from headgate.core.job_rules import (
    Cancelled,
    Completed,
    Crashed,
    Deferred,
    Failed,
    Outcome,
    Skipped,
    read_loss,
    settle,
)
from headgate.core.ports.claims import Ready, Renewal, Want
from headgate.core.ports.jobs import JobFilter
from headgate.core.ports.store import Store

T = TypeVar("T")
ASKED_FOR = os.environ.get("HEADGATE_MACHINE_EXAMPLES")
EXAMPLES = int(ASKED_FOR or "40")
STEPS = 50
ALL = 10_000
"""A limit that never bites: which of equals go first is nobody's promise."""
UNORDERED = {"lost", "uncancelled", "revivable", "expire", "held_keys"}

ticks = st.sampled_from([0.5, 3.0, LEASE_S, LEASE_S + 1, 61.0, 4000.0])
tenants = st.sampled_from(["a", "b", "B"])
nodes = st.sampled_from(["n1", "n2"])
models = st.sampled_from(["", "m"])
batches = st.sampled_from([None, "x", "y"])
outcomes: st.SearchStrategy[Outcome] = st.sampled_from(
    [
        Completed(b'"done"'),
        Skipped("nothing new"),
        Cancelled("no"),
        Deferred(0.0, "drain"),
        Deferred(40.0, "held"),
        Crashed(),
        Failed(Failure(kind=FailureKind.REJECTED)),
        Failed(Failure(kind=FailureKind.TRANSIENT)),
        Failed(Failure(kind=FailureKind.TRANSIENT)),
        Failed(Failure(kind=FailureKind.THROTTLED, retry_after_s=9.0)),
    ]
)
deaths: st.SearchStrategy[Outcome] = st.sampled_from(
    [
        Crashed(),
        Crashed(),
        *[Failed(Failure(kind=FailureKind.TRANSIENT))] * 3,
        Failed(Failure(kind=FailureKind.REJECTED)),
    ]
)


def lines(places: int) -> list[Want]:
    """So much of every line there may be."""
    return [Want(model, places, tenant) for tenant in ("B", "a", "b") for model in ("", "m")]


class StoreMachine(RuleBasedStateMachine):
    """`store`, `home` and `loop` are set by the test, in a subclass of its own."""

    store: ClassVar[Store]
    home: ClassVar[Home]
    loop: ClassVar[asyncio.AbstractEventLoop]
    steps_taken: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.reference = Reference()
        self.now = NOW
        self.names = 0
        self.claims: list[Claim] = []
        """Every claim there ever was; most of them are stale."""
        self.reserved: list[tuple[str, KeyClaim, int]] = []
        self.shown: dict[str, Any] = {}
        self.nudges = itertools.count(0.001, 0.001)
        self.run(self.home.wipe())

    def run(self, verb: Awaitable[T]) -> T:
        return self.loop.run_until_complete(verb)

    def both(self, verb: str, *args: Any, **named: Any) -> Any:
        """Ask both, compare the answers or the errors, and tell the answer."""
        expected = self.attempt(lambda: getattr(self.reference, verb)(*args, **named))
        answer = self.attempt(lambda: self.run(getattr(self.store, verb)(*args, **named)))
        if verb in UNORDERED:
            answer, expected = sorted(answer, key=str), sorted(expected, key=str)
        assert _settled_order(answer) == _settled_order(expected), verb
        return answer

    def attempt(self, act: Any) -> Any:
        try:
            return act()
        except HeadgateError as error:
            return type(error)

    # ---- Submissions ------------------------------------------------------------------------------------

    def new_job(self, data: st.DataObject, *, plain: bool = False) -> NewJob:
        self.names += 1
        draw = data.draw
        expires_at = self.now + draw(st.sampled_from([20.0, 3000.0, 50_000.0]))
        records: list[tuple[str, str | None]] = [("r1", "u"), ("r2", "u"), ("r3", None)]
        writes = [] if plain else draw(st.lists(st.sampled_from(records), max_size=1))
        return a_job(
            f"j{self.names:04}",
            task=draw(st.sampled_from(["x", "x", "y"])),
            tenant=draw(tenants),
            model=draw(models),
            lane=draw(st.sampled_from(Lane)),
            priority=draw(st.sampled_from([0, 5, 5, 9])),
            max_attempts=draw(st.sampled_from([1, 1, 1, 3])),
            hold=draw(st.booleans()),
            revivable=draw(st.sampled_from([True, True, True, False])),
            run_at=self.now + draw(st.sampled_from([0.0, 0.0, -70.0, 15.0])),
            expires_at=expires_at,
            dedup_key=draw(st.sampled_from([None, "d", "d", "e"])),
            batch_id=draw(batches),
            webhook=draw(st.sampled_from([None, "https://example.com/hook"])),
            metadata=draw(st.sampled_from([None, b'{"n":1}'])),
            key=None if plain else draw(st.none() | self.keys("jobs")),
            records=tuple(a_record(name, unique_key=unique) for name, unique in writes),
        )

    def keys(self, endpoint: str) -> st.SearchStrategy[KeyClaim]:
        """Submissions and calls have endpoints of their own, as in life."""
        return st.builds(
            a_key,
            st.sampled_from(["k1", "k2"]),
            st.sampled_from([b"1", b"1", b"2"]),
            endpoint=st.just(endpoint),
            expires_at=st.sampled_from([self.now + 25.0, self.now + 5000.0]),
        )

    @initialize(data=st.data())
    def begin_with_some_jobs(self, data: st.DataObject) -> None:
        for _ in range(3):
            self.accept(data, 2)

    @rule(data=st.data(), count=st.sampled_from([1, 1, 2, 3]))
    def accept(self, data: st.DataObject, count: int) -> None:
        jobs = [self.new_job(data) for _ in range(count)]
        self.both("accept", jobs, now=self.now)

    @precondition(lambda self: self.twinless())
    @rule(
        data=st.data(),
        run_at_s=st.sampled_from([0.0, 30.0]),
        then=st.sampled_from(["replay", "revive", "revive"]),
    )
    def ask_again_for_work_that_died(self, data: st.DataObject, run_at_s: float, then: str) -> None:
        """From then on the dead letter has a live twin, and must stay where it is."""
        dead = data.draw(st.sampled_from(self.twinless()))
        twin = msgspec.structs.replace(self.new_job(data, plain=True), run_at=self.now + run_at_s)
        same = {"tenant": dead.tenant, "task": dead.task, "dedup_key": dead.dedup_key}
        self.both("accept", [msgspec.structs.replace(twin, **same)], now=self.now)
        if then == "replay":
            self.both("replay", [dead.id], by="me", now=self.now, expires_after_s=500.0)
        if then == "revive":
            self.both("revive", [dead.id], now=self.now, expires_after_s=500.0)

    def twinless(self) -> list[NewJob]:
        """Those that might come back by themselves first and twice: theirs is the rarer story."""
        dead = [row for row in self.reference.rows("dead_letter") if row.job.dedup_key is not None]
        return [row.job for row in [row for row in dead if row.revive_at is not None] * 2 + dead]

    # ---- Work -------------------------------------------------------------------------------------------

    @rule(node=nodes, verb=st.sampled_from(["join", "renew", "leave", "die", "fall silent", "forget"]))
    def live_and_die(self, node: str, verb: str) -> None:
        match verb:
            case "join":
                self.both("join", node)
            case "renew":
                self.both("renew", node)
            case "leave":
                self.both("leave", node)
            case "die":
                self.both("bury_dead", [node, "unknown", node])
            case "fall silent":
                known = self.reference.nodes.get(node)
                for beat in (7, known.beat if known else 0):
                    self.both("bury_silent", node, beat)
            case _:
                # In life a name is never used again; here the dead must be forgotten before they can join.
                self.both("forget_nodes")

    @rule(
        node=nodes,
        wants=st.lists(
            st.builds(Want, models, st.integers(0, 3), tenants),
            max_size=3,
            unique_by=lambda want: (want.tenant, want.model),
        ),
        suspects=st.integers(0, 2),
    )
    def claim(self, node: str, wants: list[Want], suspects: int) -> None:
        self.claims += self.both("claim", wants, node=node, suspects=suspects, now=self.now)

    @precondition(lambda self: self.reference.rows(*WAITING))
    @rule(node=nodes, places=st.integers(1, 4), step=st.booleans())
    def a_worker_takes_what_it_can(self, node: str, places: int, step: bool) -> None:
        """The usual way, in one step, so that jobs get far in few steps."""
        self.live_and_die(node, "join")
        self.both("ready", now=self.now)
        before = len(self.claims)
        self.claim(node, lines(places), 2)
        for claim in self.claims[before:] if step else []:
            self.both("save_step", claim.id, claim.lease, name="begin", result=b"1", now=self.now)

    @precondition(
        lambda self: self.reference.rows(*WAITING) and not self.reference.rows("suspect", "running")
    )
    @rule(node=nodes)
    def a_worker_that_dies_of_its_jobs(self, node: str) -> None:
        """Twice: whoever was there both times is a suspect."""
        for _ in range(2):
            self.a_worker_takes_what_it_can(node, 2, step=False)
            self.a_node_dies_and_its_jobs_are_rescued(node, "die")

    @precondition(lambda self: self.reference.rows("running"))
    @rule(data=st.data(), outcome=outcomes)
    def stop_one_that_runs(self, data: st.DataObject, outcome: Outcome) -> None:
        """Its worker hears of it too late, whatever comes of it."""
        row = data.draw(st.sampled_from(self.reference.rows("running")))
        self.both("cancel", row.job.id, now=self.now)
        self.settle([(row.claim(), outcome)])

    @precondition(lambda self: self.outrun())
    @rule(data=st.data(), outcome=outcomes)
    def a_slow_worker_wakes_up(self, data: st.DataObject, outcome: Outcome) -> None:
        """Another one has its job by now: nothing it writes may count."""
        claim = data.draw(st.sampled_from(self.outrun()))
        self.both("save_step", claim.id, claim.lease, name="begin", result=b"late", now=self.now)
        self.both("save_progress", claim.id, claim.lease, progress=b'"late"')
        self.settle([(claim, outcome)])

    def outrun(self) -> list[Claim]:
        held = {row.job.id: row.lease for row in self.reference.rows("running")}
        return [claim for claim in self.claims if claim.lease != held.get(claim.id, claim.lease)]

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), ended=st.lists(outcomes, min_size=1, max_size=3))
    def settle_some(self, data: st.DataObject, ended: list[Outcome]) -> None:
        """By claims that are held, or long lost."""
        held = [row.claim() for row in self.reference.rows("running")]
        any_claim = st.sampled_from([*held, *held, *self.claims[-8:]])
        self.settle([(data.draw(any_claim), outcome) for outcome in ended])

    @precondition(lambda self: self.reference.rows("running"))
    @rule(data=st.data(), unique=st.sampled_from(["u", "v", None]), follow_up=st.booleans())
    def complete_with_all_there_is(self, data: st.DataObject, unique: str | None, follow_up: bool) -> None:
        claim = data.draw(st.sampled_from([row.claim() for row in self.reference.rows("running")]))
        written = (a_record("first"), a_record(f"of {claim.id}", unique_key=unique))
        jobs = (self.new_job(data, plain=True),) if follow_up else ()
        self.settle([(claim, Completed(b'"done"', records=written, follow_ups=jobs))])

    @precondition(lambda self: self.reference.rows("running"))
    @rule(outcome=deaths)
    def all_that_run_meet_the_same(self, outcome: Outcome) -> None:
        """An outage, or the end of a machine."""
        self.settle([(row.claim(), outcome) for row in self.reference.rows("running")])

    @precondition(lambda self: self.reference.rows("ready", "suspect"))
    @rule(data=st.data(), node=nodes, stop=st.booleans())
    def an_outage(self, data: st.DataObject, node: str, stop: bool) -> None:
        """All that run fail, also one that was asked to stop."""
        self.a_worker_takes_what_it_can(node, 2, step=True)
        running = self.reference.rows("running")
        if stop and running:
            self.both("cancel", data.draw(st.sampled_from(running)).job.id, now=self.now)
        self.all_that_run_meet_the_same(Failed(Failure(kind=FailureKind.TRANSIENT)))

    @precondition(lambda self: self.reference.rows("ready", "suspect"))
    @rule(data=st.data(), node=nodes, stop=st.booleans())
    def an_outage_that_ends(self, data: st.DataObject, node: str, stop: bool) -> None:
        """An hour later the exhausted come back."""
        self.an_outage(data, node, stop)
        self.time_passes(3600.0, "ready")
        self.revive(patient=True)
        self.claim(node, lines(1), 1)
        self.live_and_die(node, "renew")

    def settle(self, pairs: list[tuple[Claim, Outcome]]) -> None:
        written = [settle(claim, outcome, rules=RULES, now=self.now, chance=0.5) for claim, outcome in pairs]
        # Which of equals goes first in line is nobody's promise: no two are equal.
        written = [msgspec.structs.replace(one, due=one.due + next(self.nudges)) for one in written]
        self.both("settle", written, now=self.now)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), name=st.sampled_from(["fetch", "parse"]))
    def save(self, data: st.DataObject, name: str) -> None:
        held = [row.claim() for row in self.reference.rows("running")]
        claim = data.draw(st.sampled_from([*held, *self.claims[-6:]]))
        self.both("save_step", claim.id, claim.lease, name=name, result=str(self.now).encode(), now=self.now)
        self.both("save_progress", claim.id, claim.lease, progress=b'{"at":1}')

    # ---- People -----------------------------------------------------------------------------------------

    def some_ids(self, data: st.DataObject) -> list[str]:
        """A few dead letters, and everybody else: those must not be touched."""
        dead = [row.job.id for row in self.reference.rows("dead_letter")]
        named = data.draw(st.lists(st.sampled_from(dead), min_size=1, max_size=3))
        return [*named, *(job_id for job_id in self.reference.jobs if job_id not in dead), "nobody"]

    @precondition(lambda self: self.reference.jobs)
    @rule(data=st.data(), tenant=st.none() | tenants)
    def cancel(self, data: st.DataObject, tenant: str | None) -> None:
        job_ids = [row.job.id for row in self.reference.rows("running")]
        job_id = data.draw(st.sampled_from([*job_ids, *self.reference.jobs, "nobody"]))
        self.both("cancel", job_id, now=self.now, tenant="not theirs")
        self.both("cancel", job_id, now=self.now, tenant=tenant, why="enough")

    @precondition(lambda self: self.reference.rows(*WAITING, "running"))
    @rule(batch=batches, tenant=tenants, limit=st.sampled_from([0, 1, 2, ALL]))
    def cancel_a_batch(self, batch: str | None, tenant: str, limit: int) -> None:
        self.both("cancel_batch", batch or "z", tenant=tenant, now=self.now, limit=limit)

    @precondition(lambda self: self.reference.rows("dead_letter"))
    @rule(
        data=st.data(),
        tenant=st.none() | tenants,
        edit=st.sampled_from([None, Edit(b'"edited"'), Edit(b'"moved"', "m")]),
        in_vain=st.booleans(),
    )
    def replay(self, data: st.DataObject, tenant: str | None, edit: Edit | None, in_vain: bool) -> None:
        named: dict[str, Any] = {"tenant": tenant, "edit": edit}
        self.both("replay", self.some_ids(data), by="me", now=self.now, expires_after_s=500.0, **named)
        if in_vain:
            self.time_passes(500.0, "expire")

    @precondition(lambda self: self.reference.rows("dead_letter"))
    @rule(data=st.data(), tenant=st.none() | tenants)
    def discard(self, data: st.DataObject, tenant: str | None) -> None:
        self.both("discard", self.some_ids(data), by="me", now=self.now, tenant=tenant)

    # ---- Upkeep and time --------------------------------------------------------------------------------

    @rule(seconds=ticks, verb=st.sampled_from(["ready", "expire", "expire", "prune", "purge"]))
    def time_passes(self, seconds: float, verb: str) -> None:
        self.now += seconds
        match verb:
            case "ready":
                self.both("ready", now=self.now)
            case "expire":
                self.both("expire", now=self.now, limit=ALL, follow_ups=self.one_that_follows)
            case "prune":
                self.both("prune", before=self.now - 100.0, limit=ALL)
            case "purge":
                self.both("purge_keys", now=self.now, limit=ALL)

    def one_that_follows(self, ended: Ended) -> tuple[NewJob, ...]:
        """After those that have a webhook; it tells all that was known of the one that ended."""
        if ended.webhook is None:
            return ()
        body = msgspec.json.encode(ended)
        follower = a_job(f"{ended.id}+{self.now:.1f}", tenant=ended.tenant, task="tell", input=body)
        # In which order they come is nobody's promise; their places in line must not depend on it.
        run_at = self.now - int(ended.id[1:]) / 1000
        return (msgspec.structs.replace(follower, run_at=run_at, expires_at=self.now + 3000.0),)

    @precondition(lambda self: self.reference.rows("running"))
    @rule(node=nodes, how=st.sampled_from(["die", "fall silent"]))
    def a_node_dies_and_its_jobs_are_rescued(self, node: str, how: str) -> None:
        self.live_and_die(node, how)
        lost = self.both("lost", limit=ALL)
        self.settle([(one.claim, read_loss(one)) for one in lost])
        self.live_and_die(node, "forget")

    @precondition(lambda self: self.reference.revivable(now=EVER, limit=1))
    @rule(patient=st.booleans())
    def revive(self, patient: bool) -> None:
        """All but one when their time has come; or before (who asks for it gets it), and some are put off first."""
        cooled = self.both("revivable", now=self.now if patient else EVER, limit=ALL)
        job_ids = sorted(job_id for job_id, _ in cooled)
        if not patient:
            self.both("cool", [*job_ids[:2], "nobody"], until=self.now + 100.0)
        self.both("revive", job_ids[1:] or job_ids, now=self.now, expires_after_s=500.0)

    # ---- Keys and records -------------------------------------------------------------------------------

    def reserve(self, data: st.DataObject, tenant: str, node: str, unknown: Unknown) -> None:
        claim = data.draw(self.keys("calls"))
        verdict = self.both("reserve", tenant, claim, node=node, unknown=unknown, now=self.now)
        if isinstance(verdict, Run):
            self.reserved.append((tenant, claim, verdict.lease))

    @rule(
        data=st.data(),
        tenant=tenants,
        unknown=st.sampled_from(Unknown),
        end=st.sampled_from(["leave", "bury", "renew"]),
        verbs=st.lists(st.sampled_from(["mark_sent", "finish", "free"]), max_size=3),
    )
    def a_caller_with_a_key(
        self, data: st.DataObject, tenant: str, unknown: Unknown, end: str, verbs: list[str]
    ) -> None:
        """It gets so far and dies, or does not; another one asks; and somebody of old goes on as if nothing was."""
        self.live_and_die("n1", "join")
        self.reserve(data, tenant, "n1", unknown)
        if verbs and self.reserved:
            self.both("mark_sent", *self.reserved[-1])
        self.live_and_die("n1", end)
        if self.reserved:
            name, claim, _ = self.reserved[-1]
            self.both("held_keys", "n1")
            self.both("reserve", name, claim, node="n2", unknown=unknown, now=self.now)
            self.go_on_with_a_key(data.draw(st.sampled_from(self.reserved[-3:])), verbs)

    def go_on_with_a_key(self, reservation: tuple[str, KeyClaim, int], verbs: list[str]) -> None:
        for verb in verbs:
            told: dict[str, Any] = {"status": 201, "body": str(self.now).encode()} if verb == "finish" else {}
            self.both(verb, *reservation, **told)

    @precondition(lambda self: self.reference.held_keys("n1"))
    @rule()
    def a_node_frees_what_it_does_not_work_on(self) -> None:
        for key in self.both("held_keys", "n1"):
            self.both("free", key.tenant, key.claim, key.lease)

    @rule(
        tenant=tenants, name=st.sampled_from(["r1", "r2"]), unique=st.sampled_from(["u", "v", None, "gone"])
    )
    def keep_a_record(self, tenant: str, name: str, unique: str | None) -> None:
        if unique == "gone":
            self.both("delete_record", tenant, "pages", name)
            return
        writes = [a_record(f"{name}-2"), a_record(name, unique_key=unique, body=str(self.now).encode())]
        self.both("put_records", tenant, writes, now=self.now)

    # ---- What must always be true -------------------------------------------------------------------------

    @invariant()
    def what_can_be_seen_is_what_the_reference_says(self) -> None:
        type(self).steps_taken += 1
        expected = {job_id: row.seen() for job_id, row in self.reference.jobs.items()}
        changed = [job_id for job_id in expected if expected[job_id] != self.shown.get(job_id)]
        self.shown = expected
        self.run(self.look(expected, changed))

    async def look(self, expected: dict[str, Any], closely: list[str]) -> None:
        store, reference = self.store, self.reference
        listed = await store.select(JobFilter(), limit=ALL)
        bulk = {"input": None, "result": None, "history": ()}
        assert listed == [
            msgspec.structs.replace(expected[job_id], **bulk) for job_id in sorted(expected, reverse=True)
        ]
        for job_id in closely:
            assert await store.find(job_id) == expected[job_id]
            assert await store.steps(job_id) == reference.jobs[job_id].steps
        assert sorted(await nodes_of(store)) == sorted(reference.nodes)
        for node in ("n1", "n2"):
            held, expected_held = await store.held_keys(node), reference.held_keys(node)
            assert sorted(held, key=str) == sorted(expected_held, key=str)
        lost = sorted(await store.lost(limit=ALL), key=lambda one: one.claim.id)
        assert lost == sorted(reference.lost(limit=ALL), key=lambda one: one.claim.id)
        stopping = _by_id(await store.uncancelled(before=EVER, limit=ALL))
        assert stopping == _by_id(reference.uncancelled(before=EVER, limit=ALL))
        for now in (self.now, self.now + 61.0, EVER):
            assert sorted(await store.revivable(now=now, limit=ALL)) == reference.revivable(
                now=now, limit=ALL
            )
        for tenant, batch in (("a", "x"), ("B", "y")):
            page: dict[str, Any] = {"tenant": tenant, "limit": 2, "after": min(expected, default=None)}
            assert await store.batch_jobs(batch, **page) == reference.batch_jobs(batch, **page)
            counts = await store.batch_counts(batch, tenant=tenant)
            assert counts == reference.batch_counts(batch, tenant=tenant)
        stored = await store.stored_bytes()
        assert {name: size for name, size in stored.items() if size} == await bytes_of_rows(store)
        # A time before all times: it shows who stands in line and promotes nobody.
        assert _settled_order(await store.ready(now=0.0)) == reference.ready(now=0.0)

    def teardown(self) -> None:
        """In the end every job is looked at closely, and all counts add up."""
        self.run(self.look_at_all())

    async def look_at_all(self) -> None:
        expected = {job_id: row.seen() for job_id, row in self.reference.jobs.items()}
        await self.look(expected, list(expected))
        for gone in {claim.id for claim in self.claims} - {*expected}:
            assert await self.store.steps(gone) == {}
        states = {job_id: job.state for job_id, job in expected.items()}
        assert await self.store.states([*states, "nobody"]) == states
        told = list(states.values())
        assert (
            await self.store.count() == {str(state): told.count(state) for state in type(told[0])}
            if told
            else True
        )
        waiting = [row.job.tenant for row in self.reference.rows("scheduled", "ready", "suspect")]
        assert await self.store.waiting_by_tenant() == {name: waiting.count(name) for name in waiting}
        for tenant in ("a", "b", "B"):
            records = await self.store.list_records(tenant, "pages", limit=ALL)
            kept = {(tenant, "pages", record.id): (record.unique_key, record.body) for record in records}
            assert kept == {
                name: (write.unique_key, msgspec.json.decode(write.body))
                for name, write in self.reference.records.items()
                if name[0] == tenant
            }


def _by_id(claims: list[Claim]) -> list[Claim]:
    return sorted(claims, key=lambda claim: claim.id)


def _settled_order(answer: Any) -> Any:
    """Answers whose order nobody promises, in one order."""
    if isinstance(answer, Ready):
        named = {tenant: tuple(sorted(answer.lines[tenant])) for tenant in sorted(answer.lines)}
        return Ready(named, answer.suspects, answer.next_at)
    if isinstance(answer, Renewal):
        return Renewal(answer.alive, answer.beats, tuple(sorted(answer.cancelled)))
    return answer


def test_no_order_of_verbs_leads_a_store_astray(home: Home, figure: Figure) -> None:
    """One reference, two databases: what they do is the same, and it is what the port says."""
    with asyncio.Runner() as runner:
        store = runner.run(home.open())
        machine: type[StoreMachine] = type(
            "Machine", (StoreMachine,), {"store": store, "home": home, "loop": runner.get_loop()}
        )
        try:
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS,
                    derandomize=ASKED_FOR is None,
                    deadline=None,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
                ),
            )
        finally:
            runner.run(home.aclose())
    figure(f"store machine on {home.kind}", f"{machine.steps_taken:,} steps like the reference")
