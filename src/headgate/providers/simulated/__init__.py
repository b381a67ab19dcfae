"""A provider without a network: latency, failures and answers as ordered, by script or by seeded chance."""

from headgate.providers.simulated.options import BEHAVIOURS, LatencyShape, SimulatedOptions, options_for
from headgate.providers.simulated.provider import SimulatedProvider
from headgate.providers.simulated.script import Outcome, ScriptedOutcome, ScriptEntry

__all__ = [
    "BEHAVIOURS",
    "LatencyShape",
    "Outcome",
    "ScriptEntry",
    "ScriptedOutcome",
    "SimulatedOptions",
    "SimulatedProvider",
    "options_for",
]
