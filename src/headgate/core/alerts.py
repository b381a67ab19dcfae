"""Alerts as values: readings in, incidents out. Each fires once, and clears once it was calm for a while.

What the rules are and what they say is in `alert_rules`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

MOST_ACTIVE: Final = 100
"""More is one trouble, not a hundred."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One incident: from the moment a rule fired until it cleared."""

    rule: str
    subject: str
    """The upstream, the task or the application it is about, or nothing."""
    message: str
    """What is wrong and what to do next."""
    value: float | None
    threshold: float | None
    fired_at: float
    """Seconds since 1970, like `cleared_at`."""
    cleared_at: float | None = None


class Reading(NamedTuple):
    """What a rule looks at, as it is now. Of what cannot be read there is no reading, and that is calm."""

    rule: str
    value: float
    subject: str = ""


class Level(NamedTuple):
    """Fires above one number; clears once it was at another or below for `calm_s` without a break."""

    fires_above: float
    clears_at: float
    calm_s: float


Words: TypeAlias = Callable[[Reading, float], str]
"""A reading and its threshold as a sentence, with what to do next."""


class _Incident:
    __slots__ = ("alert", "calm_since")

    def __init__(self, alert: Alert) -> None:
        self.alert = alert
        self.calm_since: float | None = None


class Board:
    """All incidents that are not over."""

    def __init__(self, levels: Mapping[str, Level], words: Words) -> None:
        self._levels = levels
        self._words = words
        self._incidents: dict[tuple[str, str], _Incident] = {}

    @property
    def active(self) -> tuple[Alert, ...]:
        """In the order they fired."""
        return tuple(incident.alert for incident in self._incidents.values())

    def judge(self, readings: Iterable[Reading], now: float) -> list[Alert]:
        """What changed by these readings, which are all there are: alerts that fired, and those that cleared."""
        by_key = {(reading.rule, reading.subject): reading for reading in readings}
        return [*self._cleared(by_key, now), *self._fired(by_key.values(), now)]

    def _fired(self, readings: Iterable[Reading], now: float) -> Iterator[Alert]:
        for reading in readings:
            key = reading.rule, reading.subject
            level = self._levels[reading.rule]
            if reading.value <= level.fires_above or key in self._incidents:
                continue
            if len(self._incidents) >= MOST_ACTIVE:
                return
            alert = self._alert(reading, level, fired_at=now)
            self._incidents[key] = _Incident(alert)
            yield alert

    def _cleared(self, readings: Mapping[tuple[str, str], Reading], now: float) -> Iterator[Alert]:
        for key, incident in list(self._incidents.items()):
            level, reading = self._levels[key[0]], readings.get(key)
            if reading is not None and reading.value > level.clears_at:
                incident.alert = self._alert(reading, level, fired_at=incident.alert.fired_at)
                incident.calm_since = None
                continue
            if incident.calm_since is None:
                incident.calm_since = now
            if now - incident.calm_since >= level.calm_s:
                del self._incidents[key]
                yield msgspec.structs.replace(incident.alert, cleared_at=now)

    def _alert(self, reading: Reading, level: Level, *, fired_at: float) -> Alert:
        return Alert(
            rule=reading.rule,
            subject=reading.subject,
            message=self._words(reading, level.fires_above),
            value=reading.value,
            threshold=level.fires_above,
            fired_at=fired_at,
        )
