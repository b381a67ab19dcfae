"""Calls on behalf of jobs: the same dispatcher, but single attempts, because the job owns the retries."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headgate.calls.call import Check
from headgate.calls.fields import chat_fields, embedding_fields
from headgate.calls.requests import Requests
from headgate.calls.routes import Balance, Route, Routes
from headgate.calls.upstream import Upstream
from headgate.core.answer import Answer, Reply
from headgate.core.call import Format, Message
from headgate.core.errors import InvalidRequest, UnknownModel
from headgate.core.failures import Failure, FailureKind
from headgate.core.job import Claim
from headgate.core.metering import Meter
from headgate.core.ports.calls import Llm
from headgate.core.retry import GiveUp, RetryPolicy, Wait
from headgate.formats.foreign_bodies import UNREADABLE


class SingleAttempt(RetryPolicy):
    """One attempt per upstream; only an answer that cannot be used is generated anew, at once."""

    def decide(self, failure: Failure, *, attempt: int, remaining_s: float, chance: float) -> Wait | GiveUp:
        if failure.kind is not FailureKind.INVALID_OUTPUT:
            return GiveUp("the job decides about another attempt")
        return super().decide(failure, attempt=attempt, remaining_s=remaining_s, chance=chance)


REGENERATIONS: Final = 2


@functools.cache
def _single_attempt(regenerations: int) -> SingleAttempt:
    return SingleAttempt(max_attempts=1 + regenerations)


class JobCalls:
    """`core.ports.calls.Calls` on the gateway's own dispatcher."""

    def __init__(self, requests: Requests, routes: Routes) -> None:
        self._requests = requests
        self._routes = routes

    def llm(
        self, claim: Claim, *, deadline: float, new_id: Callable[[], str], meter: Meter | None = None
    ) -> Llm:
        return _JobLlm(self._requests, claim, deadline, new_id, meter)

    def check_model(self, model: str) -> None:
        self._routes.check(model)

    def places(self, model: str) -> int:
        try:
            route = self._routes.find(model)
        except UnknownModel:
            return 0
        return sum(_batch_places(upstream) for upstream in _in_use(route))


def _in_use(route: Route) -> list[Upstream]:
    """The upstreams a new call could go to now: all equals, or the first in order that takes calls."""
    able = [upstream for upstream in route.upstreams if upstream.takes_calls()]
    return able if route.balance is Balance.LEAST_BUSY else able[:1]


def _batch_places(upstream: Upstream) -> int:
    """The slots batch may hold, and a few that wait in its lane, so that turns and promotion have somebody."""
    if upstream.closed:
        return 1  # The probe.
    slots, rules = upstream.gate.admission.slots, upstream.gate.rules
    waiting = max(1, slots // 4)
    if rules.depth:
        waiting = min(waiting, max(1, rules.depth * 3 // 4))
    return max(1, slots - rules.reserved_slots) + waiting


def _check_that_it_is_readable(answer: Answer) -> None:
    """Direct calls pass a body on without reading all of it, but a job's result is stored to be read later."""
    try:
        answer.json()
    except UNREADABLE as error:
        raise ValueError(f"the answer is not valid JSON: {error}") from None


class _JobLlm:
    """One run's way to its model."""

    __slots__ = (
        "_claim",
        "_deadline",
        "_entered",
        "_meter",
        "_new_id",
        "_requests",
        "calls",
        "cost_usd",
        "unpriced",
        "upstream",
    )

    def __init__(
        self,
        requests: Requests,
        claim: Claim,
        deadline: float,
        new_id: Callable[[], str],
        meter: Meter | None,
    ) -> None:
        self._requests = requests
        self._claim = claim
        self._deadline = deadline
        self._new_id = new_id
        self._meter = meter
        self._entered = False
        self.upstream: str | None = None
        self.calls = 0
        self.cost_usd = 0.0
        self.unpriced = 0

    async def send(
        self,
        fields: Mapping[str, Any],
        *,
        wanted: Format = Format.CHAT,
        size_bytes: int = 0,
        model: str | None = None,
    ) -> Reply:
        """A body as it came, without its model: what the provider answers is the reply's body."""
        return await self._ask(
            wanted, fields, model=model, size_bytes=size_bytes, check=_check_that_it_is_readable
        )

    async def complete(
        self,
        *,
        messages: Sequence[Message],
        model: str | None = None,
        check: Check | None = None,
        regenerations: int | Sequence[Mapping[str, Any]] = REGENERATIONS,
        params: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Reply:
        changes = () if isinstance(regenerations, int) else regenerations
        most = regenerations if isinstance(regenerations, int) else len(regenerations)
        fields = chat_fields(messages, {**(params or {}), **more})
        return await self._ask(Format.CHAT, fields, model=model, check=check, most=most, changes=changes)

    async def embed(
        self,
        *,
        input: str | Sequence[str],  # noqa: A002 - as in the port
        model: str | None = None,
        params: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Reply:
        fields = embedding_fields(input, {**(params or {}), **more})
        return await self._ask(Format.EMBEDDINGS, fields, model=model)

    async def _ask(
        self,
        wanted: Format,
        fields: Mapping[str, Any],
        *,
        model: str | None,
        size_bytes: int = 0,
        check: Check | None = None,
        most: int = REGENERATIONS,
        changes: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        """Waiting counts from the moment the job was due; a job's later attempts pay from the budget."""
        claim = self._claim
        call = self._requests.begin(
            self._new_id(),
            self._model(model),
            fields,
            wanted=wanted,
            size_bytes=size_bytes,
            lane=claim.lane,
            tenant=claim.tenant,
            policy=_single_attempt(most),
            check=check,
        )
        call.deadline = min(call.deadline, self._deadline)
        call.since -= max(0.0, self._age_s())
        call.changes = iter(changes)
        call.alone = call.goes_back = True
        call.repeats = claim.attempts > 1
        call.spend = self._spend
        self._enter(call.tokens)
        try:
            reply = await self._requests.answer(call)
        finally:
            self.calls += call.attempts
            self.cost_usd += call.cost_usd
            self.unpriced += call.unpriced
        self._spend(reply.usage.total_tokens)
        self.upstream = reply.upstream
        return reply

    def close(self) -> None:
        if self._meter is not None and self._entered:
            self._entered = False
            self._meter.leave()

    def _enter(self, tokens: int) -> None:
        """Against the limits of the key that submitted the job. Later calls of a run that was let in are only counted:
        refused, it would begin anew and be paid again.
        """
        meter, now = self._meter, self._requests.dispatcher.clock.now()
        if meter is None:
            return
        if self._entered:
            meter.add(now)
        else:
            meter.enter_job(now, tokens=tokens, deferrals=self._claim.deferrals)
            self._entered = True

    def _spend(self, tokens: int) -> None:
        if self._meter is not None:
            self._meter.used(tokens, self._requests.dispatcher.clock.now())

    def _model(self, asked: str | None) -> str:
        if not (named := asked or self._claim.model):
            raise InvalidRequest(
                f"task {self._claim.task!r} has no model: give @task(model=…) or a `model` in its input,"
                " or name one in the call",
                param="model",
            )
        return named

    def _age_s(self) -> float:
        return self._requests.dispatcher.clock.utc().timestamp() - self._claim.run_at
