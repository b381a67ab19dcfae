"""How a simulated provider behaves, as one checked record.

Behaviours have names too, so that a model name alone (`simulated/flaky`) says what will happen.
"""

import enum
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from headgate.core.errors import UnknownModel
from headgate.core.failures import FailureKind
from headgate.core.problems import InvalidSettings, Review
from headgate.core.spelling import did_you_mean
from headgate.providers.simulated.script import Outcome, ScriptEntry, read_entry

PREFIX: Final = "simulated/"

OUTCOME_BY_KIND: Final[Mapping[FailureKind, Outcome]] = {
    FailureKind.THROTTLED: Outcome.THROTTLED,
    FailureKind.TRANSIENT: Outcome.TRANSIENT,
    FailureKind.INVALID_OUTPUT: Outcome.BLANK,
    FailureKind.REJECTED: Outcome.REJECTED,
    FailureKind.MISCONFIGURED: Outcome.MISCONFIGURED,
    FailureKind.BROKEN: Outcome.BROKEN,
}


class LatencyShape(enum.StrEnum):
    """How chance spreads latencies with mean m; s is the spread."""

    FIXED = "fixed"
    """m"""
    UNIFORM = "uniform"
    """m·(1 − s) … m·(1 + s)"""
    EXPONENTIAL = "exponential"
    """memoryless: many short ones, a few of several m"""
    LOGNORMAL = "lognormal"
    """a long tail; s is the sigma of the logarithm"""


@dataclass(frozen=True, kw_only=True)
class SimulatedOptions:
    """A provider's temperament. Each call takes its fate from the script, else from chance, else `outcome`."""

    latency_s: float = 0.05
    """The mean time to an answer."""
    latency: LatencyShape = LatencyShape.FIXED
    latency_spread: float = 0.5
    """uniform: half-width as a share of the mean; lognormal: sigma."""
    connect_latency_s: float = 0.0
    """Time spent connecting, before anything else; `math.inf`: nobody is there."""

    failures: Mapping[str, float] = field(default_factory=dict)
    """Kind of failure → how likely a call ends so."""
    failure_latency_s: float | None = None
    """The time to an error answer; None: as long as to an answer."""
    retry_after_s: float | None = None
    """The wait that a 429 asks for; None: chance asks for none, a limit for the time until there is room."""
    outage: Sequence[tuple[float, float]] = ()
    """(start_s, end_s) since the provider's creation: every call is answered 503 between them."""
    requests_per_minute: int | None = None
    """Of any sixty seconds. Above a limit a call is answered 429; None: no limit."""
    tokens_per_minute: int | None = None
    """The same for the tokens of prompts and answers together."""
    requests_per_second: int | None = None
    """Of any second."""
    requests_per_window: tuple[int, float] | None = None
    """(requests, seconds): in each window of this length, counted from the provider's creation."""
    max_in_flight: int | None = None

    script: Sequence[ScriptEntry] = ()
    """The fates of the first calls, in order."""
    script_by_request: bool = False
    """Each request id goes through the script on its own: its attempt n gets entry n."""
    outcome: ScriptEntry = Outcome.OK
    """The fate of a call that neither script nor chance decides."""

    chunks: int = 8
    """The most pieces with text that a streamed answer comes in."""
    first_token_s: float | None = None
    """The time to a stream's first piece; None: a drawn latency."""
    chunk_gap_s: float = 0.0
    cut_after_chunks: int = 3
    """Where `cut` cuts a stream and `stall` stalls it."""

    answers: Mapping[str, str] | Sequence[str] = ()
    """Answers by the exact text of the last user message, or in the order of the calls."""
    answers_by_pattern: Mapping[str, str] = field(default_factory=dict)
    r"""Regular expression → answer, for questions without an answer of their own: the first that is found in the last
    user message. `\1` and `\g<name>` in the answer stand for what its groups found there."""
    seed: int = 0
    """Goes into the default answers' marks: two providers with two seeds answer differently."""
    output_tokens: int | None = None
    """The tokens each answer is said to have; None: counted from its text."""
    report_usage: bool = True

    many_inputs: int = 1
    """How many requests fit into one call."""
    shuffle_many: bool = True
    """The answers of one call come back in any order."""
    fail_whole: bool = False
    """One failing request fails the whole call that carries it."""

    def __post_init__(self) -> None:
        review = Review()
        self._check_times(review)
        self._check_failures(review)
        self._check_script(review)
        self._check_answers(review)
        for name in ("script_by_request", "report_usage", "shuffle_many", "fail_whole"):
            _check_flag(review, name, getattr(self, name))
        review.refuse()

    def _check_times(self, review: Review) -> None:
        review.number("latency_s", self.latency_s)
        review.choice("latency", self.latency, LatencyShape)
        # A uniform latency may not reach below zero.
        widest = 1 if self.latency == LatencyShape.UNIFORM else math.inf
        review.number("latency_spread", self.latency_spread, most=widest)
        if self.connect_latency_s != math.inf:
            review.number("connect_latency_s", self.connect_latency_s)
        review.number("first_token_s", self.first_token_s)
        review.number("chunk_gap_s", self.chunk_gap_s)
        review.number("chunks", self.chunks, least=1, whole=True)
        review.number("cut_after_chunks", self.cut_after_chunks, whole=True)

    def _check_failures(self, review: Review) -> None:
        review.number("failure_latency_s", self.failure_latency_s)
        review.number("retry_after_s", self.retry_after_s)
        review.number("requests_per_minute", self.requests_per_minute, least=1, whole=True)
        review.number("tokens_per_minute", self.tokens_per_minute, least=1, whole=True)
        review.number("requests_per_second", self.requests_per_second, least=1, whole=True)
        review.number("max_in_flight", self.max_in_flight, least=1, whole=True)
        _check_window(review, "requests_per_window", self.requests_per_window)
        _check_shares(review, self.failures)
        if _is_list(review, "outage", self.outage):
            for index, span in enumerate(self.outage):
                _check_span(review, f"outage[{index}]", span)

    def _check_script(self, review: Review) -> None:
        _check_entry(review, "outcome", self.outcome)
        if _is_list(review, "script", self.script):
            for index, entry in enumerate(self.script):
                _check_entry(review, f"script[{index}]", entry)

    def _check_answers(self, review: Review) -> None:
        _check_texts(review, "answers", self.answers)
        _check_patterns(review, "answers_by_pattern", self.answers_by_pattern)
        review.number("seed", self.seed, most=2**32 - 1, whole=True)
        review.number("output_tokens", self.output_tokens, whole=True)
        review.number("many_inputs", self.many_inputs, least=1, whole=True)


def _check_shares(review: Review, failures: object) -> None:
    if not isinstance(failures, Mapping):
        review.add("failures", f"must map kinds of failure to probabilities, not {failures!r}")
        return
    count = len(review.problems)
    for kind, share in failures.items():
        if kind not in OUTCOME_BY_KIND:
            known = ", ".join(OUTCOME_BY_KIND)
            review.add(
                f"failures.{kind}", f"is unknown; known: {known}{did_you_mean(str(kind), OUTCOME_BY_KIND)}"
            )
        review.number(f"failures.{kind}", share, most=1)
    # Ten times 0.1 is a little more than 1 in floating point, and meant as 1.
    if len(review.problems) == count and math.fsum(failures.values()) > 1 + 1e-9:
        review.add("failures", f"must add up to at most 1, not {math.fsum(failures.values()):g}")


def _check_span(review: Review, path: str, span: object) -> None:
    if isinstance(span, str) or not isinstance(span, Sequence) or len(span) != 2:
        review.add(path, f"must be a pair of seconds, start and end, not {span!r}")
        return
    count = len(review.problems)
    review.number(path, span[0])
    review.number(path, span[1])
    if len(review.problems) == count and not span[0] < span[1]:
        review.add(path, f"must end after its start, not {span!r}")


def _check_window(review: Review, path: str, window: object) -> None:
    if window is None:
        return
    if isinstance(window, str) or not isinstance(window, Sequence) or len(window) != 2 or None in window:
        review.add(path, f"must be a pair, requests and seconds, not {window!r}")
        return
    review.number(path, window[0], least=1, whole=True)
    review.number(path, window[1], above=0)


def _check_entry(review: Review, path: str, entry: object) -> None:
    try:
        read_entry(entry)
    except InvalidSettings as error:
        review.problems.extend(problem.under(path) for problem in error.problems)


def _check_texts(review: Review, name: str, value: object) -> None:
    texts = [*value, *value.values()] if isinstance(value, Mapping) else value
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        review.add(name, f"must be a list of texts or a mapping of texts, not {value!r}")
    elif not all(isinstance(text, str) for text in texts):
        review.add(name, "must hold texts only")


def _check_patterns(review: Review, name: str, value: object) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in (*value, *value.values())):
        review.add(name, f"must be a mapping of texts, not {value!r}")
        return
    for pattern, answer in value.items():
        try:
            # Trying it out is the only way to learn whether the answer names groups that are not there.
            re.compile(f"{pattern}|").sub(answer, "")
        except (re.error, IndexError) as error:
            review.add(name, f"{pattern!r:.60} cannot be used: {error}")


def _check_flag(review: Review, name: str, value: object) -> None:
    if not isinstance(value, bool):
        review.add(name, f"must be true or false, not {value!r}")


def _is_list(review: Review, name: str, value: object) -> bool:
    if isinstance(value, str) or not isinstance(value, Sequence):
        review.add(name, f"must be a list, not {value!r}")
        return False
    return True


BEHAVIOURS: Final[Mapping[str, SimulatedOptions]] = {
    "": SimulatedOptions(),
    "simulated": SimulatedOptions(),
    "instant": SimulatedOptions(latency_s=0),
    "slow": SimulatedOptions(latency_s=5),
    "flaky": SimulatedOptions(failures={"transient": 0.2}),
    "throttled": SimulatedOptions(failures={"throttled": 0.3}, retry_after_s=1),
    "down": SimulatedOptions(outcome=Outcome.TRANSIENT),
    "unreachable": SimulatedOptions(connect_latency_s=math.inf),
    "misconfigured": SimulatedOptions(outcome=Outcome.MISCONFIGURED),
    "rejecting": SimulatedOptions(outcome=Outcome.REJECTED),
    "broken": SimulatedOptions(outcome=Outcome.BROKEN),
    "blank": SimulatedOptions(outcome=Outcome.BLANK),
    "repeating": SimulatedOptions(outcome=Outcome.REPEAT),
    "bad-json": SimulatedOptions(outcome=Outcome.BAD_JSON),
    "cut": SimulatedOptions(outcome=Outcome.CUT),
    "stalled": SimulatedOptions(outcome=Outcome.STALL),
    "many": SimulatedOptions(many_inputs=16),
}
"""By the part of the model name after `simulated/`."""

_OPTIONS: Final = frozenset(field.name for field in fields(SimulatedOptions))


def options_for(model_name: str, overrides: Mapping[str, Any]) -> SimulatedOptions:
    """The behaviour a model name stands for, with `overrides` on top of it."""
    name = model_name.removeprefix(PREFIX)
    behaviour = BEHAVIOURS.get(name)
    if behaviour is None:
        known = ", ".join(PREFIX + known for known in BEHAVIOURS if known not in {"", "simulated"})
        raise UnknownModel(
            f"no simulated behaviour is called {name!r}; known: simulated, {known}"
            f"{did_you_mean(name, BEHAVIOURS)}",
            param="model",
        )
    _check_names(overrides)
    return replace(behaviour, **overrides)


def _check_names(overrides: Mapping[str, Any]) -> None:
    review = Review()
    for name in overrides:
        if name not in _OPTIONS:
            review.add(str(name), f"is no option of a simulated provider{did_you_mean(str(name), _OPTIONS)}")
    review.refuse()
