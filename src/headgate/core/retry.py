"""Whether a failed attempt deserves another, and how long to wait first. Time and chance are given."""

import enum
from dataclasses import dataclass
from typing import Self, assert_never

from headgate.core.failures import Failure, FailureKind
from headgate.core.problems import Review


class Jitter(enum.StrEnum):
    """How chance spreads a wait of w seconds."""

    NONE = "none"
    """w"""
    FULL = "full"
    """0 … w"""
    EQUAL = "equal"
    """w/2 … w"""
    ADDITIVE = "additive"
    """w … w·(1 + jitter_share)"""
    SYMMETRIC = "symmetric"
    """w − jitter_s … w + jitter_s"""


@dataclass(frozen=True, slots=True)
class Wait:
    """Try again after exactly this long. What is logged is what is slept."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt on this upstream. `expired` when only the deadline stands in the way."""

    reason: str
    expired: bool = False


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """One owner of retries per call. `max_attempts` counts all calls to one upstream, the first included."""

    max_attempts: int = 3
    first_wait_s: float = 0.5
    factor: float = 2.0
    longest_wait_s: float = 20.0
    jitter: Jitter = Jitter.FULL
    jitter_share: float = 0.5
    jitter_s: float = 0.5
    count_throttles: bool = False
    """Throttled attempts count, too; else only the deadline bounds them."""

    def __post_init__(self) -> None:
        review = Review()
        review.number("max_attempts", self.max_attempts, least=1, most=100, whole=True)
        review.number("first_wait_s", self.first_wait_s)
        review.number("factor", self.factor, least=1)
        review.number("longest_wait_s", self.longest_wait_s)
        if (jitter := review.choice("jitter", self.jitter, Jitter)) is not None:
            object.__setattr__(self, "jitter", jitter)
        review.number("jitter_share", self.jitter_share)
        review.number("jitter_s", self.jitter_s)
        review.refuse()

    @classmethod
    def sdk(cls) -> Self:
        """As OpenAI's SDK waits, nearly: after two failures a second or more has passed. The default of models."""
        return cls(first_wait_s=0.35, jitter=Jitter.ADDITIVE)

    @classmethod
    def bedrock(cls) -> Self:
        """For AWS Bedrock's quotas: five patient attempts."""
        return cls(
            max_attempts=5,
            first_wait_s=2.0,
            longest_wait_s=20.0,
            jitter=Jitter.ADDITIVE,
            count_throttles=True,
        )

    @classmethod
    def web(cls) -> Self:
        """For a client of a web API: three attempts, a second or two apart."""
        return cls(
            max_attempts=3, first_wait_s=1.0, jitter=Jitter.ADDITIVE, jitter_share=0.1, count_throttles=True
        )

    @classmethod
    def agents(cls) -> Self:
        """For agents that fan out: four attempts, spread by half a second either way."""
        return cls(
            max_attempts=4, first_wait_s=1.0, jitter=Jitter.SYMMETRIC, jitter_s=0.5, count_throttles=True
        )

    def decide(self, failure: Failure, *, attempt: int, remaining_s: float, chance: float) -> Wait | GiveUp:
        """What to do after attempt number `attempt` (from 1) failed with `remaining_s` left to the deadline."""
        if not failure.retryable:
            return GiveUp(f"a {failure.kind} failure is not retried")
        if attempt >= self.max_attempts:
            return GiveUp(f"{attempt} of {self.max_attempts} attempts failed")
        wait_s = self.wait_after(failure, attempt=attempt, chance=chance)
        if wait_s >= remaining_s:
            return GiveUp("the next attempt would start past the deadline", expired=True)
        return Wait(wait_s)

    def wait_after(self, failure: Failure, *, attempt: int, chance: float) -> float:
        """The wait after attempt `attempt`. Bad output is regenerated at once: waiting would not mend it."""
        if failure.kind is FailureKind.INVALID_OUTPUT:
            return 0.0
        # What the provider asked for is a floor, and beats the cap: it knows, we guess.
        return max(self.backoff_s(attempt, chance), failure.retry_after_s or 0.0)

    def backoff_s(self, attempt: int, chance: float) -> float:
        """The drawn wait, clamped after the jitter: a longest wait of 20 s means 20 s."""
        try:
            base_s = min(self.first_wait_s * self.factor ** (attempt - 1), self.longest_wait_s)
        except OverflowError:
            base_s = self.longest_wait_s if self.first_wait_s else 0.0
        return min(max(0.0, self._spread(base_s, chance)), self.longest_wait_s)

    def _spread(self, base_s: float, chance: float) -> float:
        match self.jitter:
            case Jitter.NONE:
                return base_s
            case Jitter.FULL:
                return base_s * chance
            case Jitter.EQUAL:
                return base_s * (0.5 + 0.5 * chance)
            case Jitter.ADDITIVE:
                return base_s * (1 + self.jitter_share * chance)
            case Jitter.SYMMETRIC:
                return base_s + self.jitter_s * (2 * chance - 1)
            case _:
                assert_never(self.jitter)


@dataclass(frozen=True, kw_only=True)
class WaitSeries(RetryPolicy):
    """Waits that are listed one by one: there is one attempt more than waits. Each is stretched by chance, 10 % at most."""

    waits_s: tuple[float, ...]
    jitter: Jitter = Jitter.ADDITIVE
    jitter_share: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_attempts", len(self.waits_s) + 1)
        super().__post_init__()
        review = Review()
        for index, wait_s in enumerate(self.waits_s):
            review.number(f"waits_s[{index}]", wait_s)
        review.refuse()

    def backoff_s(self, attempt: int, chance: float) -> float:
        """The last wait again where somebody allows more attempts than there are waits."""
        return self._spread(self.waits_s[min(attempt, len(self.waits_s)) - 1], chance)
