"""The gate under every order of events hypothesis can think of: no slot is lost, no waiter forgotten or served twice.

The real gate runs on a real event loop that this test steps by hand, so that a cancel can land right after a
hand-over, before the waiter has woken up: the moment in which earlier systems leaked their slots.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis.strategies as st
from conftest import Figure
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headgate.core.errors import HeadgateError, Preempted
from headgate.core.gate_rules import GateRules, Order
from headgate.core.messages import Lane
from headgate.core.pacing import PacingRules
from headgate.core.ticket import Place, Ticket
from headgate.dispatch.gate import Gate
from headgate.planner.virtual import VirtualClock, VirtualLoop

STEPS = 60
EXAMPLES = int(os.environ.get("HEADGATE_GATE_MACHINES", "600"))
PROMISED_STEPS = 10_000
steps_taken = 0


@dataclass(eq=False)
class Caller:
    """One caller and what became of it, as the gate's user sees it."""

    ticket: Ticket
    finish: asyncio.Event = field(default_factory=asyncio.Event)
    returns: bool = False
    sleeps: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: str = "waiting"
    task: "asyncio.Task[None] | None" = None


class GateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.callers: list[Caller] = []
        self.gate: Gate
        self.most_slots = 0

    @initialize(
        slots=st.sampled_from([1, 1, 2, 3, 4]),
        reserved=st.integers(0, 4),
        depth=st.sampled_from([0, 1, 3, 8]),
        order=st.sampled_from(Order),
        preempt=st.sampled_from([True, True, False]),
        interval_s=st.sampled_from([0.0, 0.0, 1.0]),
        promote_after_s=st.sampled_from([0.0, 2.0, 50.0]),
    )
    def set_up(
        self,
        slots: int,
        reserved: int,
        depth: int,
        order: Order,
        preempt: bool,
        interval_s: float,
        promote_after_s: float,
    ) -> None:
        rules = GateRules(
            slots=slots,
            reserved_slots=min(reserved, slots),
            depth=depth,
            interactive_order=order,
            preempt=preempt,
            promote_after_s=promote_after_s,
            pacing=PacingRules(interval_s=interval_s),
        )
        self.most_slots = slots
        self.gate = Gate("gate", rules, clock=self.clock, chance=lambda: 0.5)

    # ---- What callers do ------------------------------------------------------------------------

    @rule(lane=st.sampled_from(Lane), tenant=st.sampled_from("abc"), patient=st.booleans())
    def arrive(self, lane: Lane, tenant: str, patient: bool) -> None:
        ticket = Ticket(since=self.clock.now(), lane=lane, tenant=tenant, patient=patient)
        caller = Caller(ticket)
        caller.task = self.loop.create_task(self.visit(caller))
        self.callers.append(caller)
        self.step()

    async def visit(self, caller: Caller) -> None:
        try:
            await self.gate.enter(caller.ticket)
            await self.hold(caller)
        except HeadgateError as error:
            caller.outcome = error.code
        except asyncio.CancelledError:
            caller.outcome = "cancelled"
        finally:
            self.gate.leave(caller.ticket)

    async def hold(self, caller: Caller) -> None:
        while True:
            caller.outcome = "holding"
            try:
                with self.gate.preemptible(caller.ticket):
                    await caller.finish.wait()
            except Preempted:
                caller.returns = True
            if caller.sleeps:
                await self.sleep_with_the_slot(caller)
                continue
            if not caller.returns:
                caller.outcome = "served"
                return
            caller.returns = False
            caller.outcome = "waiting"
            self.gate.leave(caller.ticket)
            await self.gate.enter(caller.ticket, returning=True)

    async def sleep_with_the_slot(self, caller: Caller) -> None:
        """A short wait between two attempts: the slot stays, unless it is taken for somebody who waits."""
        caller.sleeps = False
        caller.ticket.asleep = True
        try:
            await caller.wake.wait()
        finally:
            caller.ticket.asleep = False
        if not self.gate.renew(caller.ticket):
            caller.outcome = "waiting"
            self.gate.leave(caller.ticket)
            await self.gate.enter(caller.ticket, returning=True)

    @precondition(lambda self: self.batch_holders())
    @rule(interactive_arrives=st.sampled_from([True, True, False]))
    def batch_falls_asleep(self, interactive_arrives: bool) -> None:
        """All batch holders wait between attempts; somebody who may preempt them comes in the same breath."""
        asleep = self.batch_holders()
        for caller in asleep:
            caller.sleeps = True
            caller.wake.clear()
            caller.finish.set()
        self.step()
        self.step()
        for caller in asleep:
            caller.finish.clear()
        if interactive_arrives:
            self.arrive(lane=Lane.INTERACTIVE, tenant="a", patient=True)

    @precondition(lambda self: any(caller.ticket.asleep for caller in self.callers))
    @rule(data=st.data())
    def wake_up(self, data: st.DataObject) -> None:
        asleep = [caller for caller in self.callers if caller.ticket.asleep]
        data.draw(st.sampled_from(asleep)).wake.set()

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.living())).finish.set()

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """At any moment: while waiting, in transit or holding."""
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

        self.in_loop(act)

    @precondition(lambda self: self.in_place(Place.HOLDING))
    @rule(data=st.data())
    def give_back_and_return(self, data: st.DataObject) -> None:
        """A holder gives its slot back for a long wait and comes again, as after a retry's back-off."""
        caller = data.draw(st.sampled_from(self.in_place(Place.HOLDING)))
        caller.returns = True
        caller.finish.set()
        self.step()
        self.step()
        caller.finish.clear()

    # ---- What operators and providers do ----------------------------------------------------------

    @rule(slots=st.integers(1, 5))
    def resize(self, slots: int) -> None:
        self.most_slots = max(self.most_slots, slots)
        self.in_loop(lambda: self.gate.resize(slots))

    @rule(seconds=st.sampled_from([0.5, 4.0, 1000.0]))
    def pause(self, seconds: float) -> None:
        self.in_loop(lambda: self.gate.pause(seconds))

    @rule()
    def step(self) -> None:
        """One turn of the loop: one hand-over gets half-way."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 400.0]))
    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

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
        assert admission.free + admission.held + admission.in_transit == admission.slots
        assert admission.waiting == len(self.in_place(Place.WAITING))

    @invariant()
    def batch_keeps_to_its_bound(self) -> None:
        """Grants keep to it; a gate made smaller under load is let down as slots come back."""
        if not hasattr(self, "gate"):
            return
        in_use = sum(
            caller.ticket.lane is Lane.BATCH
            for caller in self.in_place(Place.HOLDING) + self.in_place(Place.IN_TRANSIT)
        )
        bound = max(1, self.most_slots - self.gate.rules.reserved_slots)
        assert in_use <= bound

    def teardown(self) -> None:
        """With every holder finishing and time passing, everybody who waits is served, and all is empty."""
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
            assert admission.held == admission.in_transit == 0
            assert not self.gate._waiters
            assert not self.gate._running
            assert all(caller.task is not None and caller.task.done() for caller in self.callers)
            assert "waiting" not in {caller.outcome for caller in self.callers}

    def drain(self) -> None:
        for _ in range(2 * len(self.callers) + 2):
            for caller in self.callers:
                caller.finish.set()
                caller.wake.set()
            self.loop.run_until_complete(asyncio.sleep(1000.0))
            # A clamped pause ends with one probe; its success opens the gate for the others.
            self.gate.admission.pause.call_succeeded(float("inf"))

    def living(self) -> list[Caller]:
        return [caller for caller in self.callers if caller.task is not None and not caller.task.done()]

    def batch_holders(self) -> list[Caller]:
        return [
            caller
            for caller in self.in_place(Place.HOLDING)
            if caller.ticket.lane is Lane.BATCH and not caller.ticket.asleep
        ]

    def in_place(self, place: Place) -> list[Caller]:
        return [caller for caller in self.callers if caller.ticket.place is place]

    def in_loop(self, act: Callable[[], object]) -> None:
        """Act inside the loop, with nothing else happening before or after."""
        self.loop.call_soon(act)
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()


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

    figure("gate machine", f"{steps_taken:,} steps (≥ 10,000), no slot lost, no waiter forgotten")
    assert steps_taken >= PROMISED_STEPS
