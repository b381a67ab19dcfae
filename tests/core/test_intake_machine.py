"""An `Intake` under every order of starts, ends and times hypothesis can think of: its books stay right, it never gets stuck."""

import copy
import math

import hypothesis.strategies as st
import pytest
from core.intake_stage import REFUSED_AFTER_S, own, started
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.core.allowance import Quota, Quotas
from headgate.core.intake import Closed, Limited, Opened
from headgate.core.limit import SPAN_S, Measure
from headgate.core.start import Outcome, Start

ENOUGH_STEPS = 300
hints = st.sampled_from([0.0, 0.0, 1.0, 60.0])


class IntakeMachine(RuleBasedStateMachine):
    """Calls start when they may (and some when they may not), end well or badly or tell nothing; time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.intake = own(8)
        self.now = 1024.0
        self.live: list[Start] = []
        self.starts: list[Start] = []
        self.news_say_closed = False

    @initialize(slots=st.sampled_from([1, 8, 64]), learns=st.booleans(), breaks=st.booleans())
    def set_up(self, slots: int, learns: bool, breaks: bool) -> None:
        self.intake = own(slots, learns=learns, breaks=breaks, longest_hint_s=20.0)

    # ---- What happens -----------------------------------------------------------------------------

    @rule(tokens=st.sampled_from([0.0, 0.1, 700.0]), number=st.integers(1, 12))
    def some_start_if_they_may(self, tokens: float, number: int) -> None:
        for _ in range(number):
            if self.intake.opens_at(self.now, tokens) <= self.now:
                probes = self.intake.closed
                self.start(tokens)
                if probes:
                    assert self.live[-1].probe
                    assert self.intake.opens_at(self.now, tokens) > self.now, "one probe at a time"

    @rule(tokens=st.sampled_from([0.0, 700.0]))
    def a_holder_starts_unasked(self, tokens: float) -> None:
        """A slot that was held idle is used after all."""
        self.start(tokens)

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(Outcome),
        number=st.integers(1, 6),
        hint_s=hints,
    )
    def some_end(self, data: st.DataObject, outcome: Outcome, number: int, hint_s: float) -> None:
        first = data.draw(st.integers(0, len(self.live) - 1))
        for start in self.live[first : first + number]:
            self.end(start, outcome, hint_s)

    @rule(outcome=st.sampled_from([Outcome.THROTTLED, Outcome.FAILED, Outcome.BROKE]), hint_s=hints)
    def it_goes_down(self, outcome: Outcome, hint_s: float) -> None:
        while not self.intake.closed and len(self.live) < 100:
            self.now += 0.01
            self.start(0.0)
            if self.intake.breaks or outcome is Outcome.THROTTLED:
                self.end(self.live[-1], outcome, hint_s)

    @precondition(lambda self: any(start.probe for start in self.live))
    @rule(outcome=st.sampled_from(Outcome), hint_s=hints)
    def the_probe_ends(self, outcome: Outcome, hint_s: float) -> None:
        self.end(next(start for start in self.live if start.probe), outcome, hint_s)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), remaining=st.integers(0, 50), reset_s=st.sampled_from([0.01, 1.0, 60.0]))
    def an_answer_tells_a_quota(self, data: st.DataObject, remaining: int, reset_s: float) -> None:
        start = data.draw(st.sampled_from(self.live))
        self.intake.read(start, Quotas(Quota(60, remaining, reset_s), Quota(6000, 100 * remaining, reset_s)))
        self.end(start, Outcome.ANSWERED, 0.0)

    @rule(
        rate=st.sampled_from([5, 20]), in_flight=st.sampled_from([2, 1000]), seconds=st.sampled_from([3, 8])
    )
    def callers_crowd_in(self, rate: int, in_flight: int, seconds: int) -> None:
        """More than the upstream takes: so many starts a second, so many in flight."""
        accepted: list[Start] = []
        refused: list[Start] = []
        for _ in range(seconds * 40):
            self.now += 0.025
            for start in [start for start in accepted if start.at + 0.3 <= self.now]:
                accepted.remove(start)
                self.end(start, Outcome.ANSWERED, 0.0)
            for start in [start for start in refused if start.at + REFUSED_AFTER_S <= self.now]:
                refused.remove(start)
                self.end(start, Outcome.THROTTLED, 1.0)
            if self.intake.opens_at(self.now, 1.0) <= self.now:
                recent = sum(not start.refused and start.at > self.now - 1 for start in self.starts[-100:])
                takes = recent < rate and len(accepted) < in_flight
                self.start(1.0)
                (accepted if takes else refused).append(self.live[-1])

    @rule(seconds=st.sampled_from([0.01, 0.25, 1.1, 5.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_reload(self) -> None:
        fresh = own(8, learns=self.intake.learns, breaks=self.intake.breaks, longest_hint_s=20.0)
        fresh.inherit(self.intake)
        self.intake, self.live, self.starts, self.news_say_closed = fresh, [], [], False

    def start(self, tokens: float) -> None:
        start = started(self.intake, self.now, tokens=tokens)
        self.live.append(start)
        self.starts.append(start)
        assert start.loads[Measure.IN_FLIGHT] == len(self.live)

    def end(self, start: Start, outcome: Outcome, hint_s: float) -> None:
        self.live.remove(start)
        self.intake.end(self.now, start, outcome, hint_s)

    # ---- What must always be true -------------------------------------------------------------------

    @invariant()
    def as_many_are_in_flight_as_started_and_did_not_end(self) -> None:
        assert self.intake.in_flight == len(self.live)

    @invariant()
    def the_window_agrees_with_a_naive_recount(self) -> None:
        window = self.intake._window
        window.trim(self.now)
        recent = [start for start in self.starts if start.at > self.now - SPAN_S]
        passed = [start for start in recent if not start.refused]
        assert (len(window), window.passed) == (len(recent), len(passed))
        assert window.tokens == pytest.approx(sum(start.tokens for start in recent))
        assert window.passed_tokens == pytest.approx(sum(start.tokens for start in passed), abs=1e-6)

    @invariant()
    def shares_are_shares_and_limits_let_something_through(self) -> None:
        intake = self.intake
        assert 0 <= intake.share < 1
        assert intake.limit is None or intake.limit.most >= 2
        assert intake.learns or intake.limit is None

    @invariant()
    def the_news_tell_whether_it_is_closed(self) -> None:
        news, self.intake.news = self.intake.news, []
        for item in news:
            match item:
                case Closed(for_s=for_s):
                    assert 0 < for_s <= 20.0
                    self.news_say_closed = True
                case Opened():
                    assert self.news_say_closed
                    self.news_say_closed = False
                case Limited():
                    assert self.intake.learns
        assert self.news_say_closed == (self.intake.closed is not None)

    @invariant()
    def the_next_call_may_go_in_the_end(self) -> None:
        """Asked again at each time it gave, it lets a call go, unless one in flight has to end first."""
        intake, now = copy.deepcopy(self.intake), self.now
        for _ in range(ENOUGH_STEPS):
            at = intake.opens_at(now, 1.0)
            if at <= now:
                return
            if math.isinf(at):
                assert intake.in_flight
                assert not intake.closed or any(start.probe for start in self.live)
                return
            now = at
        raise AssertionError(f"asked {ENOUGH_STEPS} times, the last time at {now - self.now} s")


IntakeMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrderOfEvents = IntakeMachine.TestCase


@pytest.mark.parametrize("rate", [1, 100])
def test_a_hundred_thousand_calls_take_no_endless_memory(rate: int) -> None:
    intake = own(8)
    for number in range(100_000):
        start = started(intake, number / rate)
        intake.end(number / rate + 0.005, start, Outcome.ANSWERED)

    assert len(intake._log) <= 400
    assert len(intake._window) <= 2 * rate
