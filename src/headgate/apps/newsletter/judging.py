"""Judging the items: a few at a time, each verdict written down before the next call, nothing asked past the time limit.

A run is aborted when its model is plainly set up wrongly, or when too many items have no verdict.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import headgate
from headgate.apps.newsletter.contract import MOST_OUTPUT_TOKENS, Prompts, check_answer, read_judgement
from headgate.apps.newsletter.items import Item
from headgate.apps.newsletter.judging_model import SIMULATED, JudgingModel
from headgate.apps.newsletter.ledger import Ledger
from headgate.apps.newsletter.meter import Meter
from headgate.apps.newsletter.verdicts import Outcome, Verdict, failure_of

FIRST_ITEMS: Final = 3
"""When so many fail alike before any other end, it is the set-up that is wrong."""
LEAST_CALL_S: Final = 1.0
"""With less time left, nothing new is begun."""
PATIENCE_S: Final = 120.0
"""How long an item waits for an upstream that takes no calls, before it goes without a verdict."""
_SET_UP: Final = frozenset({headgate.FailureKind.MISCONFIGURED, headgate.FailureKind.REJECTED})
"""A wrong model is also told as a wrong request, by Bedrock for one."""
_OUT_OF_REACH: Final = frozenset(
    {headgate.FailureKind.TRANSIENT, headgate.FailureKind.BROKEN, headgate.DeadlineExceeded.code}
)
_PASSING: Final = (headgate.Refused, headgate.UpstreamUnavailable, headgate.DeadlineExceeded)
"""What may be over when all others have been asked."""


class Aborted(headgate.HeadgateError):
    """The run makes no sense as it is: nothing is mailed."""

    code = "newsletter_aborted"


@dataclass
class Judge:
    """Judges the items of one run."""

    gateway: headgate.Gateway
    ledger: Ledger
    meter: Meter
    prompts: Prompts
    model: JudgingModel
    run_id: str
    most_fallbacks: float
    until: float
    """On the loop's clock; infinite without a time limit."""
    told: Callable[[int, int], None]
    """Hears how many of how many have their verdict."""
    verdicts: dict[str, Verdict]
    """By item, final ones known before included."""
    _counts: Counter[Outcome] = field(default_factory=Counter)
    _first_failures: list[headgate.HeadgateError] = field(default_factory=list)
    """Before anything succeeded."""
    _succeeded: bool = False
    _again: list[Item] = field(default_factory=list)
    """Failed for a reason that may be over by now."""
    _calls: Counter[str] = field(default_factory=Counter)
    """Made for each item, in all rounds together."""

    def __post_init__(self) -> None:
        # All upstreams of a model have its policy.
        self._policy = self.gateway.routes.find(self.model.name).upstreams[0].policy

    async def judge(self, items: Sequence[Item]) -> None:
        """A verdict for every item. `Aborted` when that is beyond hope."""
        self._counts = Counter(verdict.outcome for verdict in self.verdicts.values())
        self.told(self._counts[Outcome.OK], len(items))
        await self._round([item for item in items if item.id not in self.verdicts], len(items))
        again, self._again = self._again, []
        await self._round(again, len(items))

    async def _round(self, items: Sequence[Item], total: int) -> None:
        waiting = deque(items)

        async def work() -> None:
            while waiting:
                item = waiting.popleft()
                verdict = await self._verdict(item)
                await self.ledger.save_verdict(item, verdict)
                self._note(item, verdict)
                self._check_fallbacks(total)
                self.told(self._counts[Outcome.OK], total)

        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self.model.parallel, len(waiting))):
                    workers.create_task(work())
        except ExceptionGroup as group:
            # One is enough to tell; the others were cancelled, or say the same.
            raise group.exceptions[0] from None

    async def _verdict(self, item: Item) -> Verdict:
        if self._left_s() < LEAST_CALL_S:
            return Verdict.skipped(run_id=self.run_id)
        try:
            reply = await self._ask(item)
        except (headgate.InvalidRequest, headgate.StoreUnavailable):
            raise  # Our own mistake, or nowhere to write verdicts down: no item can do better.
        except headgate.HeadgateError as error:
            if self._is_late(error):
                return Verdict.skipped(run_id=self.run_id)
            self._check_set_up(error)
            self._calls[item.id] += getattr(error, "attempts", 0)
            if isinstance(error, _PASSING) and self._calls[item.id] < self._policy.max_attempts:
                self._again.append(item)
            return Verdict.fallback(error, run_id=self.run_id, attempts=self._calls[item.id])
        self._succeeded = True
        return Verdict.judged(
            read_judgement(reply.content),
            reply,
            run_id=self.run_id,
            attempts=self._calls[item.id] + reply.attempts,
            cost_usd=self.meter.cost_of(reply),
            simulated=self.model.simulated and reply.upstream.startswith(SIMULATED),
        )

    async def _ask(self, item: Item) -> headgate.Reply:
        """An upstream that takes no calls for now is waited for: nobody was asked, so nothing is spent."""
        # What an earlier round has used up is not allowed again.
        policy = replace(self._policy, max_attempts=self._policy.max_attempts - self._calls[item.id])
        patient_until = min(self.until, _now() + PATIENCE_S)
        while True:
            try:
                return await self.gateway.complete(
                    model=self.model.name,
                    messages=self.prompts.messages(item),
                    lane=headgate.Lane.BATCH,
                    deadline_s=None if self._left_s() == math.inf else self._left_s(),
                    check=check_answer,
                    retry=policy,
                    max_completion_tokens=MOST_OUTPUT_TOKENS,
                )
            except (headgate.Refused, headgate.UpstreamUnavailable) as error:
                wait_s = error.retry_after_s or LEAST_CALL_S
                if error.attempts or patient_until - _now() < wait_s + LEAST_CALL_S:
                    raise
                await asyncio.sleep(wait_s)

    def _check_set_up(self, error: headgate.HeadgateError) -> None:
        """The first items tell whether key, model name and permissions are right."""
        if self._succeeded or len(self._first_failures) >= FIRST_ITEMS:
            return
        first = self._first_failures
        first.append(error)
        if len(first) == FIRST_ITEMS and all(map(_is_set_up, first)):
            told = next((one for one in first if isinstance(one, headgate.UpstreamMisconfigured)), error)
            raise Aborted(
                f"the first {FIRST_ITEMS} items failed as misconfigured: {getattr(told, 'upstream', None)}"
                f" answered {failure_of(told)}. Check {self.model.setting}, and the credentials."
            )

    def _note(self, item: Item, verdict: Verdict) -> None:
        if (before := self.verdicts.get(item.id)) is not None:
            self._counts[before.outcome] -= 1
        self._counts[verdict.outcome] += 1
        self.verdicts[item.id] = verdict
        self.meter.fallbacks = self._counts[Outcome.FALLBACK]

    def _check_fallbacks(self, total: int) -> None:
        """Too many are told as soon as that is certain."""
        failed = self._counts[Outcome.FALLBACK]
        if failed > self.most_fallbacks * total:
            told = (
                f"{verdict.upstream or ''} {verdict.failure}".strip()
                for verdict in self.verdicts.values()
                if verdict.failure
            )
            why = ", ".join(f"{cause} ({count})" for cause, count in Counter(told).most_common(3))
            raise Aborted(
                f"{failed} of {total} items have no verdict, more than apps.newsletter.most_fallbacks ="
                f" {self.most_fallbacks:g} allows: {why}. {self._advice()}"
            )

    def _advice(self) -> str:
        """By the class that most failures have: a network that is down says nothing about the model's id."""
        classes = Counter(verdict.failure.split()[0] for verdict in self.verdicts.values() if verdict.failure)
        [(most, _)] = classes.most_common(1)
        if most in _SET_UP:
            return f"Check {self.model.setting}, and the credentials."
        if most == headgate.FailureKind.INVALID_OUTPUT:
            return f"The answers do not keep to the contract: choose another model ({self.model.setting})."
        if most in _OUT_OF_REACH:
            return "The upstream fails or cannot be reached: check the network, and the upstream's address and status."
        return "The upstream takes fewer calls than the newsletter makes: lower apps.newsletter.parallel, or run it later."

    def _left_s(self) -> float:
        return self.until - _now()

    def _is_late(self, error: headgate.HeadgateError) -> bool:
        """Whether it is the run's own limit that stood in the way: a wait would have gone past it."""
        if isinstance(error, headgate.Refused):
            return self._left_s() < error.retry_after_s + LEAST_CALL_S
        return isinstance(error, headgate.DeadlineExceeded) and self._left_s() < PATIENCE_S


def _is_set_up(error: headgate.HeadgateError) -> bool:
    return isinstance(error, headgate.CallFailed) and error.failure.kind in _SET_UP


def _now() -> float:
    return asyncio.get_running_loop().time()
