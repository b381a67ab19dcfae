"""Which fate each call meets, and how long that takes: the script first, then chance, then the usual."""

import math
from itertools import accumulate
from typing import assert_never

from headgate.core.ports.clock import Chance
from headgate.providers.simulated.options import OUTCOME_BY_KIND, LatencyShape, SimulatedOptions
from headgate.providers.simulated.script import ScriptedOutcome, read_entry


class Fates:
    """Deals one provider's fates. It draws when a call starts, so overlap and outages change no later draw."""

    def __init__(self, options: SimulatedOptions, chance: Chance) -> None:
        self._options = options
        self._chance = chance
        self._script = [read_entry(entry) for entry in options.script]
        self._dealt = 0
        self._odds = _odds(options)
        self._usual = read_entry(options.outcome)

    def deal(self, attempt: int) -> ScriptedOutcome:
        """The fate of the next request; `attempt` counts how often this one was sent, from 1."""
        if self._script:
            self._dealt += 1
            turn = attempt if self._options.script_by_request else self._dealt
            if turn <= len(self._script):
                return self._script[turn - 1]
        if self._odds:
            draw = self._chance()
            for threshold, fate in self._odds:
                if draw < threshold:
                    return fate
        return self._usual

    def latency_s(self, fate: ScriptedOutcome) -> float:
        """The time from the connection to the answer or the error."""
        if fate.latency_s is not None:
            return fate.latency_s
        options = self._options
        if fate.is_error and options.failure_latency_s is not None:
            return options.failure_latency_s
        return _draw_latency(options.latency, options.latency_s, options.latency_spread, self._chance)

    def first_token_s(self, fate: ScriptedOutcome) -> float:
        """The time from the connection to a stream's first piece or its error."""
        chosen_s = self._options.first_token_s
        if chosen_s is None or fate.is_error or fate.latency_s is not None:
            return self.latency_s(fate)
        return chosen_s


def _odds(options: SimulatedOptions) -> list[tuple[float, ScriptedOutcome]]:
    """Thresholds for one draw, in the kinds' own order: how a mapping is written changes nothing."""
    shares = [options.failures.get(kind, 0.0) for kind in OUTCOME_BY_KIND]
    fates = [ScriptedOutcome(outcome=outcome) for outcome in OUTCOME_BY_KIND.values()]
    return list(zip(accumulate(shares), fates, strict=True)) if any(shares) else []


def _draw_latency(shape: LatencyShape, mean_s: float, spread: float, chance: Chance) -> float:
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
