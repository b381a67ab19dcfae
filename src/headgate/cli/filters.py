"""Which dead letters a command is about."""

from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from headgate.core.job import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a dead letter must be like; None means any."""

    task: str | None = None
    reason: Reason | None = None
    model: str | None = None
    error_class: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def given(self) -> bool:
        return any(self.arguments().values())

    def arguments(self) -> dict[str, Any]:
        """As the verbs of `gateway.dead_letters` take them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def not_after(self, moment: datetime) -> "Filter":
        """The same, without what dies later: nobody has been asked about that."""
        return replace(self, until=moment if self.until is None else min(self.until, moment))
