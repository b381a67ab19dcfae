"""Which dead letters a command is about."""

from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from headgate.cli.options import When
from headgate.core.job import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a dead letter must be like; None means any."""

    task: str | None = None
    reason: Reason | None = None
    model: str | None = None
    error_class: str | None = None
    since: When | None = None
    until: When | None = None

    @property
    def given(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    @property
    def relative(self) -> bool:
        return any(when is not None and when.relative for when in (self.since, self.until))

    def arguments(self) -> dict[str, Any]:
        """As the verbs of `gateway.dead_letters` take them. It must not be relative: see `at`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.moment if isinstance(value, When) else value for name, value in given.items()}

    def at(self, now: datetime) -> "Filter":
        """The same with dates only."""
        since, until = (when and When(when.at(now)) for when in (self.since, self.until))
        return replace(self, since=since, until=until)

    def not_after(self, now: datetime) -> "Filter":
        """The same with dates only, without what dies later: the user has not confirmed that."""
        until = now if self.until is None else min(self.until.at(now), now)
        return replace(self.at(now), until=When(until))
