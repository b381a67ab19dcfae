"""Alerts as values: what is wrong for so long or so often that somebody must look."""

import msgspec


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One incident: from the moment a rule fired until it cleared."""

    rule: str
    subject: str
    """The upstream or the task it is about, or nothing."""
    message: str
    """What is wrong and what to do next."""
    value: float | None
    threshold: float | None
    fired_at: float
    """Seconds since 1970, like `cleared_at`."""
    cleared_at: float | None
