"""A provider without a network: latency, failures and answers as ordered, by script or by seeded chance."""

from headgate.providers.simulated.behaviours import BEHAVIOURS, options_for
from headgate.providers.simulated.latency import LatencyShape
from headgate.providers.simulated.options import SimulatedOptions
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
