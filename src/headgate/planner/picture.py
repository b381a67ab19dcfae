"""A plan as a picture: one run over time, or a sweep. Needs the extra `plot`; its colours can be told apart by everybody."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headgate.core.errors import SettingsError
from headgate.planner.books import ANSWERED, UNFINISHED, Item
from headgate.planner.plan import Plan
from headgate.planner.run import Run
from headgate.planner.summary import unit_for
from headgate.planner.sweep import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette; line styles and markers say the same once more.
BLUE: Final = "#0072B2"
RED: Final = "#D55E00"
GREEN: Final = "#009E73"
ORANGE: Final = "#E69F00"
GREY: Final = "#595959"
COLOURS: Final = (BLUE, RED, GREEN, ORANGE, "#CC79A7", "#56B4E9", "#000000")
MARKERS: Final = "osD^vPX"
POINTS: Final = 500
ENDINGS: Final = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Before anything is played: whether it can be drawn at all."""
    if path.suffix.lower() not in ENDINGS:
        raise SettingsError(f"--plot {path}: name a file that ends with .png or .svg")
    if not path.absolute().parent.is_dir():
        raise SettingsError(f"--plot {path}: there is no such folder")
    _figure()


def draw(plan: Plan, run: Run | None, path: Path) -> None:
    figure = _figure()
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    if run is None:
        _draw_sweep(plan, above, below)
    else:
        _draw_run(plan, run, above, below)
    for axes in (above, below):
        axes.grid(visible=True, color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        if len(axes.get_legend_handles_labels()[1]) > 1:
            axes.legend(framealpha=0.9, edgecolor="none")
    figure.savefig(path, dpi=150)


def _figure() -> "Figure":
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra: not everybody has it
    except ImportError:
        raise SettingsError.missing_extra("--plot", "plot") from None
    return Figure(figsize=(8, 6), layout="constrained")


def _draw_run(plan: Plan, run: Run, above: "Axes", below: "Axes") -> None:
    """Above, what arrived and what was answered; below, the calls that answered them."""
    unit_s, unit = unit_for(run.span_s)
    moments = [run.span_s * point / POINTS for point in range(POINTS + 1)]
    times = [moment / unit_s for moment in moments]
    answered = [item for item in run.books.items if item.end == ANSWERED]
    lost = [item for item in run.books.items if item.end not in {ANSWERED, UNFINISHED}]
    arrived = _count(run.books.items, lambda item: item.arrived_at, moments)
    above.plot(times, arrived, color=GREY, linestyle="--", label="arrived")
    done = _count(answered, lambda item: item.ended_at, moments)
    above.plot(times, done, color=BLUE, linewidth=2, label="answered")
    if lost:
        gone = _count(lost, lambda item: item.ended_at, moments)
        above.plot(times, gone, color=RED, linestyle="-.", label="lost")
    finish_by_s = plan.scenario.finish_by_s
    if finish_by_s is not None and finish_by_s < 1.5 * run.span_s:
        above.axvline(finish_by_s / unit_s, color=GREEN, linestyle=":", label="finish by")
    begun = _count(answered, lambda item: item.called_at, moments)
    in_flight = [one - other for one, other in zip(begun, done, strict=True)]
    below.fill_between(times, in_flight, step="post", color=BLUE, alpha=0.3, linewidth=0)
    below.step(times, in_flight, where="post", color=BLUE, linewidth=1, label="answering calls")
    below.axhline(plan.settings["slots"] or 0, color=GREY, linestyle="--", label="slots")
    below.locator_params(axis="y", integer=True)
    above.set_ylabel("items")
    below.set_ylabel("with a provider")
    below.set_xlabel(unit)
    above.set_title(
        f"{plan.model}: {len(run.books.items):,} items, one run with seed {plan.seed}", loc="left"
    )


def _draw_sweep(plan: Plan, above: "Axes", below: "Axes") -> None:
    """The time to finish with its range, and the longest waits; a line for each value of a second setting."""
    names = list(plan.rows[0].changes)
    unit_s, unit = unit_for(max(row.summary.span_high_s for row in plan.rows))
    for number, (label, rows) in enumerate(_lines(plan.rows, names)):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        at = [row.changes[names[0]] for row in rows]
        middle = [row.summary.span_s / unit_s for row in rows]
        low = [(row.summary.span_s - row.summary.span_low_s) / unit_s for row in rows]
        high = [(row.summary.span_high_s - row.summary.span_s) / unit_s for row in rows]
        above.errorbar(at, middle, yerr=[low, high], capsize=3, color=colour, marker=marker, label=label)
        waits = [row.summary.p99_wait_s / unit_s for row in rows]
        below.plot(at, waits, color=colour, marker=marker)
    _mark_lost(plan, above, names[0], unit_s)
    if plan.scenario.finish_by_s is not None:
        above.axhline(plan.scenario.finish_by_s / unit_s, color=GREY, linestyle=":", label="finish by")
    values = sorted({row.changes[names[0]] for row in plan.rows})
    if len(values) <= 20:
        below.set_xticks(values, [f"{value:g}" for value in values])
    above.set_ylabel(f"finished after, {unit}")
    below.set_ylabel(f"p99 wait, {unit}")
    below.set_xlabel(names[0])
    above.set_title(
        f"{plan.model}: {plan.rows[0].summary.items:,} items, medians with their ranges", loc="left"
    )


def _mark_lost(plan: Plan, axes: "Axes", name: str, unit_s: float) -> None:
    lost = [row for row in plan.rows if row.summary.lost >= 0.5]
    if lost:
        at = [row.changes[name] for row in lost]
        middle = [row.summary.span_s / unit_s for row in lost]
        axes.scatter(at, middle, s=180, facecolors="none", edgecolors="black", label="items were lost")


def _lines(rows: Sequence[Row], names: Sequence[str]) -> Iterator[tuple[str, list[Row]]]:
    """Rows that differ in the first setting only, by what the others are."""
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        label = ", ".join(f"{name} {row.changes[name]:g}" for name in names[1:]) or "median"
        by_label.setdefault(label, []).append(row)
    yield from by_label.items()


def _count(items: Sequence[Item], key: Callable[[Item], float], moments: Sequence[float]) -> list[int]:
    """How many had come so far, at each moment."""
    times = sorted(map(key, items))
    return [bisect_right(times, moment) for moment in moments]
