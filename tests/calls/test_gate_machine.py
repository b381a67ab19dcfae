"""The gate under every order of events hypothesis can think of: no slot is lost, no waiter forgotten or served twice.

The real gate runs on a real event loop that this test steps by hand, so that a cancel can land right after a
hand-over, before the waiter has woken up: the moment in which earlier systems leaked their slots. Each caller behaves
as the dispatcher does; the machine says how each call at the upstream ends.
"""

import asyncio
import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import hypothesis.strategies as st
from conftest import Figure
from core.intake_stage import RUN
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headgate.calls.gate import ChooseAgain, Gate
from headgate.core.call import Lane
from headgate.core.errors import HeadgateError, Preempted
from headgate.core.gate_rules import GateRules, Order
from headgate.core.intake import GRACE_S, Closed, News
from headgate.core.limit import Limit, Measure
from headgate.core.pacing import PacingRules
from headgate.core.start import Outcome, Start
from headgate.core.ticket import Place, Ticket
from headgate.planner.virtual import VirtualClock, VirtualLoop

T = TypeVar("T")
STEPS: Final = 60
EXAMPLES: Final = int(os.environ.get("HEADGATE_GATE_MACHINES", "600"))
PROMISED_STEPS: Final = 10_000
REFUSALS: Final = (Outcome.THROTTLED, Outcome.FAILED, Outcome.BROKE)
steps_taken = 0
closings = 0


class Kind(NamedTuple):
    """What a caller wants. One draw makes it: many small ones would take most of the time."""

    lane: Lane
    tenant: str = "a"
    patient: bool = True
    movable: bool = False
    tokens: int = 0
    time_s: float = math.inf
    idles: bool = False
    """It gets its slot first and calls later, as a held slot does."""


KINDS: Final = [
    Kind(*kind)
    for kind in itertools.product(
        Lane, "abc", (True, True, False), (False, False, True), (0, 5), (math.inf, 50.0, 5.0), (False, True)
    )
]


class End(NamedTuple):
    """How a call ends, and what its caller does after a refusal."""

    outcome: Outcome
    hint_s: float = 0.0
    afterwards: str = "gives up"


ENDS: Final = [
    *[End(Outcome.ANSWERED)] * 9,
    *(
        End(*end)
        for end in itertools.product(
            REFUSALS, (0.0, 1.0, 1000.0), ("gives up", "waits with the slot", "comes again")
        )
    ),
]


def _one_of(choices: Sequence[T]) -> st.SearchStrategy[T]:
    """As `sampled_from`, which prints all choices."""

    def choose(index: int) -> T:
        return choices[index]

    return st.integers(0, len(choices) - 1).map(choose)


@dataclass(eq=False)
class Caller:
    """One caller and what became of it, as the gate's user sees it."""

    ticket: Ticket
    idles: bool
    end: End = ENDS[0]
    finish: asyncio.Event = field(default_factory=asyncio.Event)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: str = "waiting"
    task: "asyncio.Task[None] | None" = None


@dataclass(eq=False)
class Shut:
    """A closed upstream."""

    opens_at: float
    """When it may be probed."""
    probes: list[Start] = field(default_factory=list)
    answered: bool = False
    """Since it closed."""


class GateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.callers: list[Caller] = []
        self.gate: Gate
        self.starts_seen = 0
        self.shut: dict[str | None, Shut] = {}
        """By the tenant whose calls it keeps out; None: all."""

    @initialize(
        slots=st.sampled_from([1, 2, 2, 3, 4, 6]),
        reserved=st.integers(0, 4),
        depth=st.sampled_from([0, 0, 2, 8]),
        rules=st.fixed_dictionaries(
            {
                "interactive_order": st.sampled_from(Order),
                "preempt": st.sampled_from([True, True, False]),
                "breaker": st.sampled_from([True, True, False]),
                "promote_after_s": st.sampled_from([0.0, 2.0, 50.0]),
                "pacing": st.sampled_from([PacingRules(), PacingRules(), PacingRules(interval_s=1.0)]),
            }
        ),
        limit=st.sampled_from([None, None, *((measure, most) for measure in Measure for most in (2.0, 3.5))]),
        closed_by=st.sampled_from([None, None, *REFUSALS]),
    )
    def set_up(
        self,
        slots: int,
        reserved: int,
        depth: int,
        rules: dict[str, Any],
        limit: tuple[Measure, float] | None,
        closed_by: Outcome | None,
    ) -> None:
        gate_rules = GateRules(slots=slots, reserved_slots=min(reserved, slots), depth=depth, **rules)
        self.gate = Gate("gate", gate_rules, clock=self.clock, chance=lambda: 0.5)
        self.gate.on_news = self.hear
        if limit is not None:
            self.gate.admission.intake.learning.limit = Limit(0.0, *limit, 0.5)
        if closed_by is not None:
            self.close(closed_by)

    def close(self, outcome: Outcome) -> None:
        """As many calls as it takes, one after the other."""
        for _ in range(RUN):
            self.arrive(Kind(Lane.INTERACTIVE))
            self.pass_time(2.0)
            self.end(self.callers[-1], End(outcome))
            self.step()
            self.step()

    # ---- What callers do ------------------------------------------------------------------------

    @rule(kinds=st.lists(_one_of(KINDS), min_size=1, max_size=4))
    def arrive_together(self, kinds: list[Kind]) -> None:
        for kind in kinds:
            self.arrive(kind)

    def arrive(self, kind: Kind) -> None:
        now = self.clock.now()
        ticket = Ticket(
            since=now,
            lane=kind.lane,
            tenant=kind.tenant,
            deadline=now + kind.time_s,
            tokens=kind.tokens,
            patient=kind.patient,
            movable=kind.movable,
        )
        caller = Caller(ticket, idles=kind.idles)
        caller.task = self.loop.create_task(self.visit(caller))
        self.callers.append(caller)
        self.step()

    async def visit(self, caller: Caller) -> None:
        deadline = caller.ticket.deadline
        try:
            async with asyncio.timeout_at(None if math.isinf(deadline) else deadline):
                await self.come_in(caller)
                if caller.idles:
                    self.gate.put_down(caller.ticket)
                    caller.outcome = "idle"
                    await caller.wake.wait()
                    await self.start_again(caller)
                while not await self.call(caller):
                    pass
                caller.outcome = "served"
        except HeadgateError as error:
            caller.outcome = error.code
        except TimeoutError:
            caller.outcome = "expired"
        except asyncio.CancelledError:
            caller.outcome = "cancelled"
        finally:
            self.gate.leave(caller.ticket)

    async def come_in(self, caller: Caller, *, returning: bool = False) -> None:
        caller.outcome = "waiting"
        while True:
            try:
                await self.gate.enter(caller.ticket, returning=returning)
            except ChooseAgain:
                # There is only this gate, so it is chosen again.
                caller.ticket = self.fresh(caller.ticket)
            else:
                return

    def fresh(self, ticket: Ticket) -> Ticket:
        return Ticket(
            since=ticket.since,
            lane=ticket.lane,
            tenant=ticket.tenant,
            deadline=ticket.deadline,
            tokens=ticket.tokens,
            patient=ticket.patient,
            movable=ticket.movable,
        )

    async def call(self, caller: Caller) -> bool:
        """One call and what follows from its end; True when there will be no other."""
        caller.outcome = "calling"
        try:
            with self.gate.preemptible(caller.ticket):
                await caller.finish.wait()
        except Preempted:
            self.gate.put_down(caller.ticket)
            await self.come_back(caller)
            return False
        caller.finish.clear()
        end = caller.end
        if end.outcome is Outcome.ANSWERED:
            for whom in self.shut.keys() & {None, caller.ticket.tenant}:
                self.shut[whom].answered = True
        self.gate.ended(caller.ticket, end.outcome, end.hint_s)
        if end.outcome is Outcome.ANSWERED or end.afterwards == "gives up":
            return True
        if end.afterwards == "waits with the slot":
            caller.ticket.asleep = True
            try:
                await caller.wake.wait()
            finally:
                caller.ticket.asleep = False
            await self.start_again(caller)
        else:
            await self.come_back(caller)
        return False

    async def start_again(self, caller: Caller) -> None:
        caller.wake.clear()
        if not self.gate.renew(caller.ticket):
            await self.come_back(caller)

    async def come_back(self, caller: Caller) -> None:
        self.gate.leave(caller.ticket)
        await self.come_in(caller, returning=True)

    @precondition(lambda self: self.calling())
    @rule(interactive_arrives=st.sampled_from([True, True, False]))
    def all_calls_are_refused_and_their_callers_wait_with_their_slots(
        self, interactive_arrives: bool
    ) -> None:
        """All holders wait between attempts; somebody who may preempt them comes in the same breath."""
        for caller in self.calling():
            self.end(caller, End(Outcome.THROTTLED, afterwards="waits with the slot"))
        self.step()
        self.step()
        if interactive_arrives:
            self.arrive(Kind(Lane.INTERACTIVE))

    @precondition(
        lambda self: any(caller.outcome == "idle" or caller.ticket.asleep for caller in self.callers)
    )
    @rule(data=st.data())
    def wake_up(self, data: st.DataObject) -> None:
        asleep = [caller for caller in self.living() if caller.outcome == "idle" or caller.ticket.asleep]
        if asleep:
            data.draw(st.sampled_from(asleep)).wake.set()

    @precondition(lambda self: self.calling())
    @rule(data=st.data(), end=_one_of(ENDS))
    def finish(self, data: st.DataObject, end: End) -> None:
        self.end(data.draw(st.sampled_from(self.calling())), end)

    @precondition(lambda self: self.calling())
    @rule(end=_one_of(ENDS), rounds=st.integers(1, 4))
    def finish_all(self, end: End, rounds: int) -> None:
        """A run of refusals is what closes an upstream, and keeps it closed."""
        for _ in range(rounds):
            for caller in self.calling():
                self.end(caller, end)
            self.step()
            self.step()

    def end(self, caller: Caller, end: End) -> None:
        caller.end = end
        caller.finish.set()

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """At any moment: while waiting, in transit, idle or in a call."""
        caller = data.draw(st.sampled_from(self.living()))
        assert caller.task is not None
        caller.task.cancel()

    @precondition(lambda self: self.in_place(Place.HOLDING))
    @rule(data=st.data())
    def hand_over_and_cancel_at_once(self, data: st.DataObject) -> None:
        """Free a slot, and cancel whoever it was handed to before that one wakes up."""
        holder = data.draw(st.sampled_from(self.in_place(Place.HOLDING)))

        def act() -> None:
            self.gate.leave(holder.ticket)
            holder.finish.set()
            for caller in self.in_place(Place.IN_TRANSIT):
                assert caller.task is not None
                caller.task.cancel()

        self.loop.call_soon(act)
        self.step()

    # ---- Time -------------------------------------------------------------------------------------

    @rule()
    def step(self) -> None:
        """One turn of the loop: one hand-over gets half-way."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    @rule(seconds=st.sampled_from([0.1, 0.3, 0.5, 1.0, 3.0, 30.0, 400.0]))
    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @precondition(lambda self: any(shut.opens_at > self.clock.now() for shut in self.shut.values()))
    @rule(early_s=st.sampled_from([0.0, 0.0, 0.1]))
    def go_to_the_opening(self, early_s: float) -> None:
        """When the closed upstream may be probed, or a little before."""
        now = self.clock.now()
        opens_at = min(shut.opens_at for shut in self.shut.values() if shut.opens_at > now)
        self.pass_time(max(0.0, opens_at - now - early_s))

    # ---- What must always be true -----------------------------------------------------------------

    @invariant()
    def no_slot_is_lost(self) -> None:
        if not hasattr(self, "gate"):
            return
        global steps_taken  # noqa: PLW0603 - one count over all machines of this run
        steps_taken += 1
        admission = self.gate.admission
        assert admission.held == len(self.in_place(Place.HOLDING))
        assert admission.in_transit == len(self.in_place(Place.IN_TRANSIT))
        assert 0 <= admission.free == admission.slots - admission.held - admission.in_transit
        assert admission.waiting == len(self.in_place(Place.WAITING))

    @invariant()
    def every_start_belongs_to_a_slot_and_is_counted_once(self) -> None:
        if hasattr(self, "gate"):
            starts = [caller for caller in self.callers if caller.ticket.start is not None]
            assert self.gate.admission.intake.in_flight == len(starts)
            assert {caller.ticket.place for caller in starts} <= {Place.HOLDING, Place.IN_TRANSIT}

    @invariant()
    def batch_keeps_to_its_bound(self) -> None:
        if hasattr(self, "gate"):
            assert self.batch_in_use() <= self.batch_bound()

    @invariant()
    def only_probes_start_while_the_upstream_is_closed(self) -> None:
        if hasattr(self, "gate"):
            self.look_at_new_starts()

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Who waits beside a free slot is let in by a timer, or by the end of a call."""
        if not hasattr(self, "gate") or self.loop._ready:  # type: ignore[attr-defined]  # asyncio's own
            return
        admission = self.gate.admission
        only_batch = not admission.turns.interactive.count and self.batch_in_use() >= self.batch_bound()
        if admission.waiting and admission.free and not only_batch:
            assert self.gate._timer is not None or admission.intake.in_flight

    def look_at_new_starts(self) -> None:
        """Those since the last look, in the order in which they were made."""
        for start in self.gate.admission.intake._log:
            if start.number > self.starts_seen:
                self.starts_seen = start.number
                if None in self.shut:
                    self.check_start(None, start)
                if start.tenant in self.shut and start.own is not None:
                    self.check_start(start.tenant, start.own[1])

    def check_start(self, whom: str | None, start: Start) -> None:
        shut = self.shut[whom]
        if start.probe:
            assert start.at >= shut.opens_at, "a probe went too early"
            assert all(probe.outcome is not None for probe in shut.probes), "two probes at once"
            shut.probes.append(start)
            return
        passed = any(start.at >= probe.at + GRACE_S[0] - 1e-9 for probe in shut.probes)
        assert shut.answered or passed, "the upstream opened for no reason"
        del self.shut[whom]

    def hear(self, news: News) -> None:
        global closings  # noqa: PLW0603 - as above
        if isinstance(news, Closed):
            closings += 1
            self.look_at_new_starts()
            if news.tenant is None:
                self.shut.clear()  # What keeps out all is no tenant's fault.
            opens_at = self.clock.now() + news.for_s
            self.shut[news.tenant] = Shut(opens_at)

    # ---- The end ----------------------------------------------------------------------------------

    def teardown(self) -> None:
        """With every call answered and time passing, everybody who waits is served, and all is empty."""
        try:
            self.everybody_ends()
        finally:
            for caller in self.living():
                assert caller.task is not None
                caller.task.cancel()
            self.step()
            self.step()
            self.loop.close()

    def everybody_ends(self) -> None:
        if hasattr(self, "gate"):
            self.drain()
            admission = self.gate.admission
            assert admission.waiting == 0, f"{admission.waiting} waiters were forgotten"
            assert admission.held == admission.in_transit == admission.intake.in_flight == 0
            assert not self.gate._waiters
            assert not self.gate._running
            assert all(caller.task is not None and caller.task.done() for caller in self.callers)
            assert {caller.outcome for caller in self.callers}.isdisjoint({"waiting", "calling", "idle"})

    def drain(self) -> None:
        for _ in range(2 * len(self.callers) + 2):
            for caller in self.living():
                self.end(caller, End(Outcome.ANSWERED))
                caller.wake.set()
            self.loop.run_until_complete(asyncio.sleep(1000.0))

    # ---- Who is where -----------------------------------------------------------------------------

    def living(self) -> list[Caller]:
        return [caller for caller in self.callers if caller.task is not None and not caller.task.done()]

    def calling(self) -> list[Caller]:
        return [
            caller
            for caller in self.living()
            if caller.outcome == "calling" and not caller.finish.is_set() and caller.ticket.start is not None
        ]

    def in_place(self, place: Place) -> list[Caller]:
        return [caller for caller in self.callers if caller.ticket.place is place]

    def batch_in_use(self) -> int:
        in_use = self.in_place(Place.HOLDING) + self.in_place(Place.IN_TRANSIT)
        return sum(caller.ticket.lane is Lane.BATCH for caller in in_use)

    def batch_bound(self) -> int:
        return max(1, self.gate.rules.slots - self.gate.rules.reserved_slots)


def test_no_order_of_events_loses_a_slot_or_a_waiter(figure: Figure) -> None:
    run_state_machine_as_test(
        GateMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )

    figure(
        "gate machine",
        f"{steps_taken:,} steps (≥ 10,000) with {closings:,} closings, no slot lost, no waiter forgotten",
    )
    assert steps_taken >= PROMISED_STEPS
    assert closings >= EXAMPLES / 50
