"""How long a call may take, in all and between signs of life."""

from dataclasses import dataclass
from typing import Final

from headgate.core.problems import Review

STREAM_FIRST_TOKEN_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """`total_s` is the default deadline over waiting, attempts and fallbacks together."""

    connect_s: float = 5.0
    first_token_s: float | None = None
    """Until a stream's first content (60 s unless set). Only when set it bounds whole answers too: a slow
    local model sends nothing for minutes."""
    idle_s: float = 30.0
    """Between two chunks of a stream."""
    total_s: float = 300.0

    @property
    def stream_first_token_s(self) -> float:
        return STREAM_FIRST_TOKEN_S if self.first_token_s is None else self.first_token_s

    def __post_init__(self) -> None:
        review = Review()
        review.number("connect_s", self.connect_s, above=0)
        review.number("first_token_s", self.first_token_s, above=0)
        review.number("idle_s", self.idle_s, above=0)
        review.number("total_s", self.total_s, above=0)
        review.refuse()
