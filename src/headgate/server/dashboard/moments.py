"""Times and amounts in words for people. A moment carries its ISO form; the page's script keeps its words fresh."""

from datetime import UTC, datetime
from typing import Final

from headgate.server.dashboard.html import Markup, el

_STEPS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


class Moments:
    """Words relative to now. On a live page the script counts, so that nothing is sent only because time passes."""

    def __init__(self, now: datetime, *, ticking: bool = False) -> None:
        self.now = now
        self._ticking = ticking

    def ago(self, when: datetime | float | None) -> Markup | str:
        """`3 min ago`."""
        return self._words(when, "ago")

    def until(self, when: datetime | float | None) -> Markup | str:
        """`12 s`: what is left."""
        return self._words(when, "left")

    def in_s(self, seconds: float) -> Markup | str:
        """What is left of so many seconds, to the second: a clock read twice must not look like news."""
        return self.until(round(self.now.timestamp() + seconds))

    def _words(self, when: datetime | float | None, kind: str) -> Markup | str:
        if when is None:
            return "–"
        at = datetime.fromtimestamp(when, UTC) if isinstance(when, int | float) else when.astimezone(UTC)
        iso = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        words = at.strftime("%H:%M:%S UTC") if self._ticking else _relative(self.now, at, kind)
        return el("time", words, datetime=iso, title=iso, data_words=kind)


def _relative(now: datetime, at: datetime, kind: str) -> str:
    if kind == "left":
        return duration(max(0.0, (at - now).total_seconds()))
    return f"{duration(max(0.0, (now - at).total_seconds()))} ago"


def duration(seconds: float) -> str:
    """`12 s`, `3 min`, `5 h`, `2 d`."""
    for size_s, unit in _STEPS:
        if seconds >= size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return "0 s"


def milliseconds(value: float | None) -> str:
    """`3.2 ms`, `240 ms`, `1.8 s`, `2.5 min`."""
    if not value:
        return "–" if value is None else "0 ms"
    if value < 1000:
        return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"
    seconds = value / 1000
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def amount(value: float) -> str:
    """`12,345`, `0.4`."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
