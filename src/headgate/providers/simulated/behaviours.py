"""Behaviours by name, so that a model name alone (`simulated/flaky`) says what will happen."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from headgate.core.errors import UnknownModel
from headgate.core.problems import Review
from headgate.core.spelling import did_you_mean
from headgate.providers.simulated.options import SimulatedOptions
from headgate.providers.simulated.script import Outcome

PREFIX: Final = "simulated/"

BEHAVIOURS: Final[Mapping[str, SimulatedOptions]] = {
    "": SimulatedOptions(),
    "simulated": SimulatedOptions(),
    "instant": SimulatedOptions(latency_s=0),
    "slow": SimulatedOptions(latency_s=5),
    "flaky": SimulatedOptions(failures={"transient": 0.2}),
    "throttled": SimulatedOptions(failures={"throttled": 0.3}, retry_after_s=1),
    "down": SimulatedOptions(outcome=Outcome.TRANSIENT),
    "unreachable": SimulatedOptions(connect_latency_s=math.inf),
    "misconfigured": SimulatedOptions(outcome=Outcome.MISCONFIGURED),
    "rejecting": SimulatedOptions(outcome=Outcome.REJECTED),
    "broken": SimulatedOptions(outcome=Outcome.BROKEN),
    "blank": SimulatedOptions(outcome=Outcome.BLANK),
    "repeating": SimulatedOptions(outcome=Outcome.REPEAT),
    "bad-json": SimulatedOptions(outcome=Outcome.BAD_JSON),
    "cut": SimulatedOptions(outcome=Outcome.CUT),
    "stalled": SimulatedOptions(outcome=Outcome.STALL),
    "many": SimulatedOptions(many_inputs=16),
}
"""By the part of the model name after `simulated/`."""

_OPTIONS: Final = frozenset(field.name for field in fields(SimulatedOptions))


def options_for(model_name: str, overrides: Mapping[str, Any]) -> SimulatedOptions:
    """The behaviour a model name stands for, with `overrides` on top of it."""
    name = model_name.removeprefix(PREFIX)
    behaviour = BEHAVIOURS.get(name)
    if behaviour is None:
        known = ", ".join(PREFIX + known for known in BEHAVIOURS if known not in {"", "simulated"})
        raise UnknownModel(
            f"no simulated behaviour is called {name!r}; known: simulated, {known}"
            f"{did_you_mean(name, BEHAVIOURS)}",
            param="model",
        )
    _check_names(overrides)
    return replace(behaviour, **overrides)


def _check_names(overrides: Mapping[str, Any]) -> None:
    review = Review()
    for name in overrides:
        if name not in _OPTIONS:
            review.add(str(name), f"is no option of a simulated provider{did_you_mean(str(name), _OPTIONS)}")
    review.refuse()
