"""What can happen to one simulated call, and how a script writes it down."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Final, TypeAlias

from headgate.core.problems import InvalidSettings, Problem, Review
from headgate.core.spelling import did_you_mean


class Outcome(enum.StrEnum):
    """How a call ends."""

    OK = "ok"
    THROTTLED = "throttled"
    """429"""
    TRANSIENT = "transient"
    """503"""
    TIMEOUT = "timeout"
    """504"""
    REJECTED = "rejected"
    """400"""
    MISCONFIGURED = "misconfigured"
    """401"""
    BROKEN = "broken"
    """a plain RuntimeError, as from a bug in a provider"""
    BLANK = "blank"
    """an answer without text"""
    REPEAT = "repeat"
    """an answer that says the same sentence until its tokens run out"""
    BAD_JSON = "bad_json"
    """an answer that starts as JSON and does not end as JSON"""
    CUT = "cut"
    """the connection breaks before the answer is complete"""
    STALL = "stall"
    """the connection stays open and nothing more comes, until the call is cancelled"""


_STATUS_BY_OUTCOME: Final[Mapping[Outcome, int]] = {
    Outcome.THROTTLED: 429,
    Outcome.TRANSIENT: 503,
    Outcome.TIMEOUT: 504,
    Outcome.REJECTED: 400,
    Outcome.MISCONFIGURED: 401,
}
# The others bring their own text, or none.
_TAKES_CONTENT: Final = frozenset({Outcome.OK, Outcome.CUT, Outcome.STALL})


@dataclass(frozen=True, kw_only=True)
class ScriptedOutcome:
    """One call's fate. Give an `outcome` or a `status`; what is left out follows from the options."""

    outcome: Outcome = Outcome.OK
    status: int | None = None
    """An error status (400–599), or 200–299 for an answer."""
    code: str | None = None
    """The provider's error code; a known one beats the status, as with a real provider."""
    retry_after_s: float | None = None
    latency_s: float | None = None
    content: str | None = None

    def __post_init__(self) -> None:
        review = Review()
        _check_word(review, self.outcome)
        _check_status(review, self.status)
        review.number("retry_after_s", self.retry_after_s)
        review.number("latency_s", self.latency_s)
        _check_text(review, "code", self.code)
        _check_text(review, "content", self.content)
        review.refuse()
        object.__setattr__(self, "outcome", Outcome(self.outcome))
        self._check_together(review)
        review.refuse()

    @cached_property
    def error_status(self) -> int | None:
        """The status of the error it is answered with, None when there is no such answer."""
        if self.status is not None and self.status >= 400:
            return self.status
        return _STATUS_BY_OUTCOME.get(self.outcome)

    @cached_property
    def is_error(self) -> bool:
        """It fails before anything of an answer is sent."""
        return self.error_status is not None or self.outcome is Outcome.BROKEN

    @cached_property
    def breaks_off(self) -> bool:
        """It sends the beginning of an answer and never the end."""
        return self.outcome in {Outcome.CUT, Outcome.STALL}

    @cached_property
    def fails(self) -> bool:
        """A call that is not streamed gets no answer from it."""
        return self.is_error or self.outcome is Outcome.CUT

    def _check_together(self, review: Review) -> None:
        if self.status is not None and self.outcome is not Outcome.OK:
            review.add("status", "give a status or an outcome, not both")
        for name in ("code", "retry_after_s"):
            if getattr(self, name) is not None and self.error_status is None:
                review.add(name, "goes with an error status only")
        if self.content is not None and (self.is_error or self.outcome not in _TAKES_CONTENT):
            review.add("content", "goes with an answer only: ok, cut or stall")


ScriptEntry: TypeAlias = str | int | Mapping[str, Any] | ScriptedOutcome
"""A word of `Outcome`, an HTTP status, a mapping with the fields of `ScriptedOutcome`, or one itself."""

_FIELDS: Final = frozenset(field.name for field in fields(ScriptedOutcome))


def read_entry(entry: object) -> ScriptedOutcome:
    """The outcome an entry of a script stands for. Refuses what it cannot read with `InvalidSettings`."""
    if isinstance(entry, ScriptedOutcome):
        return entry
    if isinstance(entry, str):
        return _short_for({"outcome": entry})
    if isinstance(entry, int) and not isinstance(entry, bool):
        return _short_for({"status": entry})
    if isinstance(entry, Mapping):
        return _from_mapping(entry)
    raise InvalidSettings([Problem("", f"must be a word, an HTTP status or a mapping, not {entry!r}")])


def _short_for(entry: Mapping[str, Any]) -> ScriptedOutcome:
    """Who wrote a word or a number is not told about fields."""
    try:
        return ScriptedOutcome(**entry)
    except InvalidSettings as error:
        raise InvalidSettings(Problem("", problem.message) for problem in error.problems) from None


def _from_mapping(entry: Mapping[str, Any]) -> ScriptedOutcome:
    unknown = [str(key) for key in entry if key not in _FIELDS]
    if unknown:
        raise InvalidSettings(
            Problem(key, f"is unknown; known: {', '.join(sorted(_FIELDS))}{did_you_mean(key, _FIELDS)}")
            for key in unknown
        )
    return ScriptedOutcome(**entry)


def _check_word(review: Review, word: object) -> None:
    words = list(Outcome)
    if word not in words:
        review.add(
            "outcome", f"must be one of {', '.join(words)}, not {word!r}{did_you_mean(str(word), words)}"
        )


def _check_status(review: Review, status: object) -> None:
    if status is None:
        return
    if isinstance(status, bool) or not isinstance(status, int):
        review.add("status", f"must be a whole number, not {status!r}")
    elif not (200 <= status < 300 or 400 <= status < 600):
        review.add("status", f"must be 200–299 or 400–599, not {status}")


def _check_text(review: Review, name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        review.add(name, f"must be text, not {value!r}")
