"""Charts as SVG, drawn here: they need no script, no library and no inline style."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.server.dashboard.html import Markup, el

HEIGHT: Final = 100.0
_STEPS: Final = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Line:
    """One series: its name, its colour's class and its values; None where there is nothing to tell."""

    name: str
    tone: str
    values: Sequence[float | None]


def bars(title: str, lines: Sequence[Line], *, words: Callable[[float], str], since: str) -> Markup:
    """Values on top of each other."""
    sums = [sum(filter(None, column)) for column in zip(*(line.values for line in lines), strict=True)]
    top = nice_top(max(sums, default=0.0))
    base = [0.0] * len(sums)
    drawn: list[Markup] = []
    for line in lines:
        drawn.append(el("path", d=_bars(line.values, base, top), class_=f"area {line.tone}"))
        base = [below + (value or 0.0) for below, value in zip(base, line.values, strict=True)]
    return _figure(title, lines, drawn, top=top, words=words, since=since)


def curves(title: str, lines: Sequence[Line], *, words: Callable[[float], str], since: str) -> Markup:
    """Values beside each other."""
    top = nice_top(max((value for line in lines for value in line.values if value is not None), default=0.0))
    drawn = [el("path", d=_curve(line.values, top), class_=f"line {line.tone}") for line in lines]
    return _figure(title, lines, drawn, top=top, words=words, since=since)


def nice_top(value: float) -> float:
    """The round number at or above it that ends the scale."""
    if value <= 0:
        return 1.0
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while size > value:
        size /= 10
    return next(size * step for step in _STEPS if size * step >= value * 0.999)


def _bars(values: Sequence[float | None], base: Sequence[float], top: float) -> str:
    pieces = [
        f"M{index} {_y(below, top)}V{_y(below + value, top)}h.8V{_y(below, top)}z"
        for index, (value, below) in enumerate(zip(values, base, strict=True))
        if value
    ]
    return "".join(pieces)


def _curve(values: Sequence[float | None], top: float) -> str:
    """Broken where nothing was measured; a value without neighbours is a dash."""
    pieces: list[str] = []
    before: float | None = None
    for index, value in enumerate(values):
        if value is not None:
            pieces.append(f"{'M' if before is None else 'L'}{index} {_y(value, top)}")
            pieces.append("h.5" if before is None else "")
        before = value
    return "".join(pieces)


def _y(value: float, top: float) -> str:
    return f"{HEIGHT * (1 - value / top):.1f}".removesuffix(".0")


def _figure(
    title: str,
    lines: Sequence[Line],
    drawn: Sequence[Markup],
    *,
    top: float,
    words: Callable[[float], str],
    since: str,
) -> Markup:
    width = max(len(line.values) for line in lines)
    grid = [el("line", x1=0, x2=width, y1=y, y2=y, class_="grid") for y in (0, int(HEIGHT / 2), int(HEIGHT))]
    legend = el("span", [el("span", line.name, class_=line.tone) for line in lines], class_="legend")
    picture = el(
        "svg",
        grid,
        drawn,
        viewBox=f"0 0 {width} {int(HEIGHT)}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{title}: {', '.join(line.name for line in lines)}; the scale ends at {words(top)}",
    )
    scale = el(
        "div", el("span", words(top)), el("span", words(top / 2)), el("span", words(0)), class_="scale"
    )
    axis = el("div", el("span", since), el("span", "now"), class_="axis")
    return el(
        "figure",
        el("figcaption", title, legend),
        el("div", picture, scale, class_="plot"),
        axis,
        class_="chart",
    )
