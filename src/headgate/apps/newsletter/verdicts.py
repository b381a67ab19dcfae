"""What became of an item: a verdict of the judge, a fallback in its place, or nothing for lack of time."""

import enum
from typing import Final, Self

import msgspec

import headgate
from headgate.apps.newsletter.contract import VERSION, Judgement, Label

NO_JUDGEMENT: Final = "It could not be judged."


class Outcome(enum.StrEnum):
    """How a verdict came about. Only `ok` is final; a run that goes on judges the others again."""

    OK = "ok"
    FALLBACK = "fallback"
    SKIPPED = "skipped"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One item's, with what it took."""

    outcome: Outcome
    interest_label: Label = Label.IGNORE
    confidence: float = 0.0
    summary: str = NO_JUDGEMENT
    tags: tuple[str, ...] = ()
    run_id: str
    contract: str = VERSION
    upstream: str | None = None
    attempts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    failure: str | None = None
    """Class, status and code of what went wrong."""
    simulated: bool = False
    """No language model read the item: the simulated provider answered."""

    @classmethod
    def judged(
        cls,
        judgement: Judgement,
        reply: headgate.Reply,
        *,
        run_id: str,
        attempts: int,
        cost_usd: float | None,
        simulated: bool,
    ) -> Self:
        return cls(
            outcome=Outcome.OK,
            interest_label=judgement.interest_label,
            confidence=judgement.confidence,
            summary=judgement.summary,
            tags=judgement.tags,
            run_id=run_id,
            upstream=reply.upstream,
            attempts=attempts,
            input_tokens=reply.usage.input_tokens,
            output_tokens=reply.usage.output_tokens,
            cost_usd=cost_usd,
            simulated=simulated,
        )

    @classmethod
    def fallback(cls, error: headgate.HeadgateError, *, run_id: str, attempts: int) -> Self:
        return cls(
            outcome=Outcome.FALLBACK,
            run_id=run_id,
            upstream=getattr(error, "upstream", None),
            attempts=attempts,
            failure=failure_of(error),
        )

    @classmethod
    def skipped(cls, *, run_id: str) -> Self:
        return cls(outcome=Outcome.SKIPPED, run_id=run_id)


def failure_of(error: headgate.HeadgateError) -> str:
    """What may stand in records and messages: never a provider's own text."""
    return error.failure.error if isinstance(error, headgate.CallFailed) else error.code
