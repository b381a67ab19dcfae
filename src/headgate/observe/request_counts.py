"""What is counted of requests and of their calls to providers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headgate.core import events
from headgate.core.call import Lane
from headgate.core.outcomes import Outcome, outcome_of, outcome_of_answer
from headgate.observe.labels import OTHER, ModelNames
from headgate.observe.tallies import TINY_S, Cell, Row, Tallies

OK: Final = "ok"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    """Where the answers of one model by one upstream in one lane are counted."""

    at: tuple[str, str]
    requests: Cell
    request_s: Row
    queue_s: Row
    overhead_s: Row
    input_tokens: Cell
    output_tokens: Cell


class RequestCounts:
    """Whole requests, from the caller's side."""

    def __init__(self, tallies: Tallies, models: ModelNames) -> None:
        self._models = models
        counter, histogram = tallies.counter, tallies.histogram
        by = "model", "lane"
        self._requests = counter("headgate_requests", "Requests that are over.", *by, "outcome")
        self._retried = counter(
            "headgate_retried_requests", "Requests that needed more than one call.", "model", "outcome"
        )
        self._request_s = histogram(
            "headgate_request_duration_seconds", "From a request to its end, waiting included.", *by
        )
        self._queue_s = histogram("headgate_queue_wait_seconds", "How long requests waited at gates.", *by)
        self._overhead_s = histogram(
            "headgate_overhead_seconds",
            "What requests that needed one call took beyond their queueing and that call.",
            "model",
            bounds=TINY_S,
        )
        self._first_token_s = histogram(
            "headgate_time_to_first_token_seconds", "From a request to a stream's first content.", "model"
        )
        at = "model", "upstream"
        self._tokens = counter("headgate_tokens", "Tokens of answered requests.", *at, "direction")
        self._cost_usd = counter("headgate_cost_usd", "US dollars, as far as prices are known.", *at)
        self._answers: dict[tuple[str, str, Lane], _Answers] = {}
        callers = counter("headgate_caller_requests", "Requests of callers, as alerts count them.", "outcome")
        self._callers = {outcome: callers.cell((outcome.value,)) for outcome in Outcome}

    def hearers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            events.Responded: self._responded,
            events.Cancelled: self._cancelled,
            events.HttpAnswered: self._http_answered,
        }

    def _http_answered(self, event: events.HttpAnswered) -> None:
        self._callers[outcome_of_answer(event.status, event.error)].value += 1

    def _responded(self, event: events.Responded) -> None:
        # What was called for a job or for another request is that one's business: it counts itself.
        if event.origin is None and not event.of_job:
            self._callers[outcome_of(event.error)].value += 1
        if event.error is None:
            self._answered(event, event.upstream or OTHER)
        else:
            self._failed(event, event.error)

    def _answered(self, event: events.Responded, upstream: str) -> None:
        """The hot path: names and numbers are looked up once for each kind of answer."""
        found = self._answers.get((event.model, upstream, event.lane))
        answers = self._new_answers(event, upstream) if found is None else found
        answers.requests.value += 1
        answers.request_s.put(event.latency_ms / 1000)
        answers.queue_s.put(event.queue_ms / 1000)
        if event.usage is not None:
            answers.input_tokens.value += event.usage.input_tokens
            answers.output_tokens.value += event.usage.output_tokens
        if event.cost_usd is not None:
            self._cost_usd.add(answers.at, event.cost_usd)
        if event.attempts > 1:
            self._retried.add((answers.at[0], OK))
        else:
            answers.overhead_s.put(max(0.0, event.latency_ms - event.queue_ms - event.upstream_ms) / 1000)
        if event.first_token_ms is not None:
            self._first_token_s.put((answers.at[0],), event.first_token_ms / 1000)

    def _new_answers(self, event: events.Responded, upstream: str) -> "_Answers":
        self._models.answered(event.model)
        at = model, _ = self._models.pair(event.model, upstream)
        by = (model, event.lane.value)
        answers = _Answers(
            at=at,
            requests=self._requests.cell((*by, OK)),
            request_s=self._request_s.row(by),
            queue_s=self._queue_s.row(by),
            overhead_s=self._overhead_s.row((model,)),
            input_tokens=self._tokens.cell((*at, "input")),
            output_tokens=self._tokens.cell((*at, "output")),
        )
        if model == event.model:  # Those without a name of their own are too many to be remembered.
            self._answers[model, upstream, event.lane] = answers
        return answers

    def _failed(self, event: events.Responded, error: str) -> None:
        by = model, lane = self._models.of(event.model), event.lane.value
        # A failure is told with its class, its status and the provider's code; only the class is ours.
        self._requests.add((model, lane, error.partition(" ")[0]))
        self._request_s.put(by, event.latency_ms / 1000)
        self._queue_s.put(by, event.queue_ms / 1000)
        if event.attempts > 1:
            self._retried.add((model, FAILED))

    def _cancelled(self, event: events.Cancelled) -> None:
        self._requests.add((self._models.of(event.model), event.lane.value, CANCELLED))


class UpstreamCounts:
    """Calls to providers, and what their gates did."""

    def __init__(self, tallies: Tallies, models: ModelNames) -> None:
        self._models = models
        counter, at = tallies.counter, ("model", "upstream")
        self._attempts = counter("headgate_attempts", "Calls to providers.", *at, "outcome")
        self._upstream_s = tallies.histogram(
            "headgate_upstream_duration_seconds", "How long calls to providers took.", *at
        )
        self._retries = counter("headgate_retries", "Calls that repeat a failed one.", *at, "outcome")
        self._scheduled = counter("headgate_retries_scheduled", "Calls that will be repeated.", *at, "reason")
        self._fallbacks = counter(
            "headgate_fallbacks", "Requests that left an upstream for the next one.", *at, "reason"
        )
        self._hedges = counter("headgate_hedges", "Second attempts of slow calls.", *at, "won")
        self._refusals = counter(
            "headgate_refusals", "Requests that a gate did not let in.", *at, "lane", "reason"
        )
        self._pauses = counter("headgate_pauses", "Pauses that providers asked for.", "upstream")
        self._breaker = counter(
            "headgate_breaker_changes", "Breakers that opened or closed.", "upstream", "state"
        )
        self._preemptions = counter(
            "headgate_preemptions", "Batch calls that gave way to interactive ones.", "upstream"
        )

    def hearers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            events.AttemptEnded: self._attempt_ended,
            events.RetryScheduled: self._retry_scheduled,
            events.FellBack: self._fell_back,
            events.Hedged: self._hedged,
            events.RequestRefused: self._refused,
            events.GatePaused: self._paused,
            events.BreakerChanged: self._breaker_changed,
            events.HolderPreempted: self._preempted,
        }

    def _attempt_ended(self, event: events.AttemptEnded) -> None:
        failure = event.failure
        if failure is None:
            self._models.answered(event.model)
        at = self._models.pair(event.model, event.upstream)
        outcome = OK if failure is None else failure.kind.value
        self._attempts.add((*at, outcome))
        if event.attempt > 1:
            self._retries.add((*at, outcome))
        self._upstream_s.put(at, event.duration_ms / 1000)

    def _retry_scheduled(self, event: events.RetryScheduled) -> None:
        self._scheduled.add((*self._models.pair(event.model, event.upstream), event.failure.kind.value))

    def _fell_back(self, event: events.FellBack) -> None:
        self._fallbacks.add((*self._models.pair(event.model, event.upstream), event.reason))

    def _hedged(self, event: events.Hedged) -> None:
        self._hedges.add((*self._models.pair(event.model, event.second_upstream), str(event.won).lower()))

    def _refused(self, event: events.RequestRefused) -> None:
        at = self._models.pair(event.model, event.upstream)
        self._refusals.add((*at, event.lane.value, event.reason))

    def _paused(self, event: events.GatePaused) -> None:
        self._pauses.add((self._models.upstream(event.upstream),))

    def _breaker_changed(self, event: events.BreakerChanged) -> None:
        self._breaker.add((self._models.upstream(event.upstream), event.state))

    def _preempted(self, event: events.HolderPreempted) -> None:
        self._preemptions.add((self._models.upstream(event.upstream),))
