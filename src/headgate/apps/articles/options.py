"""What an operator can decide about the article summariser."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import headgate

VARIABLES: Final[Mapping[str, str]] = {"MAX_REPETITION_RETRIES": "max_repetition_retries"}
GATE_VARIABLES: Final[Mapping[str, str]] = {"MAX_QUEUE_DEPTH": "depth"}
GATE_DEFAULTS: Final[Mapping[str, int]] = {"depth": 20}
"""Readers are told at once that the queue is full: twenty places, as the first design had it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`apps.articles` in the settings."""

    model: str = "simulated"
    max_repetition_retries: int = 2
    """How often an answer that repeats itself is generated anew."""
    max_retries: int = 3
    """Attempts of a queued summary, the first included."""
    cooldown_s: float = 3600.0
    """An article whose attempts were used up is left alone for this long."""
    timeout_s: float = 600.0
    """For one summary: its waiting, its parts and its regenerations together."""
    temperature: float | None = 0.3
    """Raised with every regeneration. None: nothing is said about it, and regenerations differ by chance alone."""

    def __post_init__(self) -> None:
        review = headgate.Review()
        review.number("max_repetition_retries", self.max_repetition_retries, most=10, whole=True)
        review.number("max_retries", self.max_retries, least=1, most=100, whole=True)
        review.number("cooldown_s", self.cooldown_s, most=31_536_000)
        review.number("timeout_s", self.timeout_s, above=0, most=86_400)
        review.number("temperature", self.temperature, most=2)
        review.refuse()
