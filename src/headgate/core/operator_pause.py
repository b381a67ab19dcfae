"""A model that an operator has paused: since when, by whom, and which pause holds for a name."""

from collections.abc import Mapping
from datetime import datetime

import msgspec


class OperatorPause(msgspec.Struct, frozen=True):
    """Holds until an operator resumes the model. `name/*` holds for a whole family."""

    model: str
    since: datetime
    by: str


def pause_over(pauses: Mapping[str, OperatorPause], model: str) -> OperatorPause | None:
    """The pause that keeps this model from being called: its own, or its family's."""
    if not pauses:
        return None
    if (own := pauses.get(model)) is not None:
        return own
    return next((pause for name, pause in pauses.items() if covers(name, model)), None)


def covers(name: str, model: str) -> bool:
    """Whether a name that may be a family's means this model."""
    return name == model or (name.endswith("/*") and model.startswith(name[:-1]))
