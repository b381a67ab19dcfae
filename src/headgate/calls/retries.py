"""After a failed attempt: whether the call is made again at the same upstream, and when. The only owner of retries."""

import logging
from typing import Final

import msgspec

from headgate.calls.call import RoutedCall, Setback
from headgate.calls.setback import from_failure, from_refusal
from headgate.calls.upstream import Emit, Failed, Upstream
from headgate.core import events
from headgate.core.failures import Failure, FailureKind
from headgate.core.gate_rules import SHORT_WAIT_S
from headgate.core.ports.clock import Chance, Clock
from headgate.core.retry import GiveUp, RetryPolicy, Wait

logger = logging.getLogger("headgate")
SPARING_WAIT_S: Final = 8.0
"""A throttled call's wait while the default retry budget is used up: the SDK's longest."""


class Retries:
    """Decides by the policy, the budget and what the upstream takes."""

    def __init__(self, *, clock: Clock, chance: Chance, emit: Emit) -> None:
        self._clock = clock
        self._chance = chance
        self._emit = emit

    def decide(
        self, call: RoutedCall, upstream: Upstream, failed: Failed, number: int, *, others: bool
    ) -> float | Setback:
        """After a failed attempt: how long the call waits before its next one here, or why it is done with this upstream."""
        failure, policy = failed.failure, call.policy or upstream.policy
        # A policy of one call is one call.
        patient = call.goes_back or (call.waits and policy.max_attempts > 1)
        forgiven = patient and self._forgives(upstream, failure, policy, call.tenant)
        if forgiven and call.goes_back and (refusal := upstream.gate.closed(call.tenant)) is not None:
            return from_refusal(refusal, spill=upstream.spill)
        name = upstream.name
        if not forgiven:
            call.faults[name] = call.faults.get(name, 0) + 1
        # What is forgiven is never the last attempt that the policy allows.
        attempt = min(number, policy.max_attempts - 1) if forgiven else call.faults[name]
        decision = self._ask_policy(upstream, policy, failure, attempt, call.deadline - self._clock.now())
        if isinstance(decision, GiveUp):
            return self._setback(call, upstream, failed, decision.reason, expired=decision.expired)
        wait_s, why = decision.seconds, ""
        if others and failure.timed_out:
            why = "the attempt timed out"
        elif wait_s > SHORT_WAIT_S and not call.waits and failure.kind is FailureKind.THROTTLED:
            why = "the caller does not wait"
        elif failure.kind is not FailureKind.INVALID_OUTPUT and not upstream.closed_to(call.tenant):
            # The retries of a closed upstream are its probes, which have a bound of their own.
            if upstream.budget.take():
                call.prepaid = upstream.budget
            elif upstream.budget.strict:
                why = "its retry budget is used up"
            elif forgiven and (wait_s := max(wait_s, SPARING_WAIT_S)) >= call.deadline - self._clock.now():
                why = "its retry budget is used up, and the next attempt would start past the deadline"
        return self._setback(call, upstream, failed, why) if why else wait_s

    def _forgives(self, upstream: Upstream, failure: Failure, policy: RetryPolicy, tenant: str) -> bool:
        """Whether a failed attempt does not count against its call: a throttle, or what a closed upstream answers."""
        if policy.count_throttles:
            return False
        if failure.kind is FailureKind.THROTTLED:
            return True
        return failure.kind is FailureKind.TRANSIENT and upstream.closed_to(tenant)

    def _ask_policy(
        self, upstream: Upstream, policy: RetryPolicy, failure: Failure, attempt: int, remaining_s: float
    ) -> Wait | GiveUp:
        longest_s = upstream.gate.rules.longest_pause_s
        if failure.retry_after_s is not None and failure.retry_after_s > longest_s:
            failure = msgspec.structs.replace(failure, retry_after_s=longest_s)
        try:
            decision: object = policy.decide(
                failure, attempt=attempt, remaining_s=remaining_s, chance=self._chance()
            )
            if isinstance(decision, Wait | GiveUp):
                return decision
            logger.error(
                "the retry policy of %s returned %r instead of Wait or GiveUp; the call is not retried",
                upstream.name,
                decision,
            )
        except Exception:
            # A policy may be the user's own. If it breaks, the provider's error goes out, unrepeated.
            logger.exception("the retry policy of %s raised; the call is not retried", upstream.name)
        return GiveUp("the retry policy itself failed")

    def announce(
        self, call: RoutedCall, upstream: Upstream, failed: Failed, number: int, wait_s: float
    ) -> None:
        self._emit(
            events.RetryScheduled(
                request_ids=call.request_ids,
                model=call.model,
                upstream=upstream.name,
                attempt=number,
                failure=failed.failure.without_text(),
                delay_ms=wait_s * 1000,
                tenant=call.tenant,
            )
        )

    def _setback(
        self, call: RoutedCall, upstream: Upstream, failed: Failed, why: str, *, expired: bool = False
    ) -> Setback:
        return from_failure(failed, upstream=upstream.name, attempts=call.attempts, why=why, expired=expired)
