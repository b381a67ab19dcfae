"""A table of figures: what · asked · measured · beside it, in the same run · ratio. Printed line by line as they come."""

import enum
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

NOISE: Final = 0.5
"""A figure that is short is said to be; only one that is not even half of what was asked is a failure."""
_WIDTHS: Final = (54, 13, 11, 32, 8)


class Verdict(enum.StrEnum):
    OK = "ok"
    SHORT = "short"
    BROKEN = "BROKEN"
    NONE = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`score` is what was reached of what was asked: 1 or more is all of it."""

    what: str
    measured: str
    asked: str = ""
    beside: str = ""
    ratio: str = ""
    score: float | None = None

    @property
    def verdict(self) -> Verdict:
        if self.score is None:
            return Verdict.NONE
        if self.score >= 1:
            return Verdict.OK
        return Verdict.SHORT if self.score >= NOISE else Verdict.BROKEN

    def __str__(self) -> str:
        columns = (self.what, self.asked, self.measured, self.beside, self.ratio)
        left, *right = (f"{text:{width}}" for text, width in zip(columns, _WIDTHS, strict=True))
        return f"{left} {'  '.join(right)}  {self.verdict}".rstrip()


def heading() -> str:
    return str(Figure(what="", asked="asked", measured="measured", beside="beside, same run", ratio="ratio"))


def rate(what: str, per_s: float, *, least: float | None = None, name: str = "", beside: float = 0) -> Figure:
    """So many a second, beside a floor or a peer."""
    return Figure(
        what=what,
        asked="" if least is None else f"≥ {least:,.0f}/s",
        measured=f"{per_s:,.0f}/s",
        beside=f"{name} {beside:,.0f}/s" if beside else "",
        ratio=f"{per_s / beside:.2f} ×" if beside else "",
        score=None if least is None else per_s / least,
    )


def duration(what: str, took_ms: float, *, most_ms: float, asked: str, name: str, beside: str) -> Figure:
    """So many milliseconds, at most."""
    return Figure(
        what=what,
        asked=asked,
        measured=f"{took_ms:.2f} ms",
        beside=f"{name} {beside}",
        score=most_ms / took_ms,
    )


def times(what: str, took_ms: float, *, beside_ms: float, most: float, name: str) -> Figure:
    """At most so many times what is beside it."""
    return Figure(
        what=what,
        asked=f"≤ {most:g} × that",
        measured=f"{took_ms:.2f} ms",
        beside=f"{name} {beside_ms:.2f} ms",
        ratio=f"{took_ms / beside_ms:.2f} ×",
        score=most * beside_ms / took_ms,
    )


def beside(what: str, per_s: float, name: str, its_per_s: float, *, least: float | None = None) -> Figure:
    """So many a second, at least such a share of what is beside it."""
    ratio = per_s / its_per_s
    return Figure(
        what=what,
        asked="" if least is None else f"≥ {least:g} × that",
        measured=f"{per_s:,.0f}/s",
        beside=f"{name} {its_per_s:,.0f}/s",
        ratio=f"{ratio:.2f} ×",
        score=None if least is None else ratio / least,
    )


def at_most(what: str, amount: float, unit: str, *, most: float | None = None, beside: str = "") -> Figure:
    """A time or a size that had better be small."""
    return Figure(
        what=what,
        asked="" if most is None else f"≤ {most:.3g} {unit}",
        measured=f"{amount:.2f} {unit}",
        beside=f"{beside} {unit}" if beside else "",
        score=None if most is None else most / max(amount, 1e-9),
    )


def none_of(what: str, count: int) -> Figure:
    """What must not happen at all."""
    return Figure(what=what, asked="0", measured=f"{count:,}", score=0.0 if count else 1.0)


def in_turns(rounds: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Each measured in turn, A B A B: whatever disturbs one disturbs the other. The medians."""
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            figures[name].append(measure())
    return {name: statistics.median(each) for name, each in figures.items()}


def run_sections(
    sections: Mapping[str, Callable[[], Iterator[Figure]]], asked: Sequence[str], *notes: str
) -> int:
    """Print what was asked for, or everything, line by line as it is measured; the exit code says how it went."""
    if unknown := set(asked) - set(sections):
        print(f"no section is called {', '.join(sorted(unknown))}; there are: {', '.join(sections)}")
        return 2
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before it begins")
    print("\n".join([*notes, heading()]), flush=True)
    broken = False
    for name in asked or sections:
        for figure in sections[name]():
            print(figure, flush=True)
            broken |= figure.verdict is Verdict.BROKEN
    return 1 if broken else 0
