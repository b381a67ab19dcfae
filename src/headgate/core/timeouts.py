"""How long a call may take, in all and between signs of life."""

from dataclasses import dataclass

from headgate.core.problems import Review


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """`total_s` is the default deadline over waiting, attempts and fallbacks together."""

    connect_s: float = 5.0
    first_token_s: float = 60.0
    """Until a stream's first content."""
    idle_s: float = 30.0
    """Between two chunks of a stream."""
    total_s: float = 300.0

    def __post_init__(self) -> None:
        review = Review()
        review.number("connect_s", self.connect_s, above=0)
        review.number("first_token_s", self.first_token_s, above=0)
        review.number("idle_s", self.idle_s, above=0)
        review.number("total_s", self.total_s, above=0)
        review.refuse()
