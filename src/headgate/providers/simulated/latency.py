"""How long a simulated answer takes: the shapes of chance around a mean."""

import enum
import math
from typing import assert_never

from headgate.core.ports.clock import Chance


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


def draw_latency(shape: LatencyShape, mean_s: float, spread: float, chance: Chance) -> float:
    """One latency. Draws nothing when there is nothing to spread, so fixed latencies leave chance alone."""
    if mean_s == 0:
        return 0.0
    match shape:
        case LatencyShape.FIXED:
            return mean_s
        case LatencyShape.UNIFORM:
            return mean_s * (1 + spread * (2 * chance() - 1))
        case LatencyShape.EXPONENTIAL:
            return -mean_s * math.log(1 - chance())
        case LatencyShape.LOGNORMAL:
            # The median lies below the mean by half the variance; without that the mean would not be m.
            return mean_s * math.exp(spread * _standard_normal(chance) - spread**2 / 2)
        case _:
            assert_never(shape)


def _standard_normal(chance: Chance) -> float:
    return math.sqrt(-2 * math.log(1 - chance())) * math.cos(math.tau * chance())
