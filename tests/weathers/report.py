"""Figures as text: runs of real processes as a Markdown table, virtual ones as ratios to the SDK alone."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from weathers.offer import Outcome, mean
from weathers.real import Mode
from weathers.table import WEATHERS, Weather
from weathers.virtual import Way

HEADINGS: Final = {
    Way.SDK: "SDK alone",
    Way.HEADGATE: "through Headgate",
    Way.RETRIES: "… with the SDK's 2 retries",
    Way.ORACLE: "oracle",
}
MODE_TITLES: Final = {Mode.WHOLE: "Whole answers", Mode.STREAMED: "Streams", Mode.JOBS: "Jobs"}
MARK: Final = "<!-- from here on: made by bench/weather.py -->"
FAIR: Final = 0.99
"""Latencies compare only where the SDK alone answers this share of calls."""


class Run(NamedTuple):
    """One run with real processes."""

    weather: str
    way: Way
    mode: Mode
    seed: int
    outcome: Outcome

    @property
    def key(self) -> tuple[str, Way, Mode]:
        return self.weather, self.way, self.mode


def line(outcome: Outcome) -> str:
    return (
        f"{outcome.answered} of {outcome.offered} · p50 {_seconds(outcome.percentile_s(0.5))} · "
        f"p99 {_seconds(outcome.percentile_s(0.99))} s · {outcome.calls} calls{_refused(outcome)}"
    )


def read_runs(path: Path) -> dict[tuple[str, Way, Mode], Run]:
    if not path.exists():
        return {}
    runs = [
        Run(
            one["weather"], Way(one["way"]), Mode(one["mode"]), one["seed"], Outcome.from_json(one["outcome"])
        )
        for one in json.loads(path.read_text())
    ]
    return {run.key: run for run in runs}


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    rows: list[dict[str, Any]] = [{**run._asdict(), "outcome": run.outcome.to_json()} for run in runs]
    path.write_text(json.dumps(rows, indent=1) + "\n")


def write_table(path: Path, table: str) -> None:
    """Into a page: what stands above the mark is kept."""
    above, _, _ = path.read_text().partition(MARK) if path.exists() else ("", "", "")
    path.write_text(f"{above}{MARK}\n\n{table}")


def markdown(runs: Mapping[tuple[str, Way, Mode], Run]) -> str:
    """One table for each mode that was run, its weathers in the usual order."""
    return "\n\n".join(_table(mode, runs) for mode in Mode if any(key[2] is mode for key in runs)) + "\n"


def _table(mode: Mode, runs: Mapping[tuple[str, Way, Mode], Run]) -> str:
    ways = [way for way in Way if any(key[1:] == (way, mode) for key in runs)]
    names = [name for name in WEATHERS if any((name, way, mode) in runs for way in ways)]
    rows = [
        f"{MODE_TITLES[mode]}: answered · p50 · p99 in seconds · calls at the provider · refusals by code\n",
        _row("weather", (HEADINGS[way] for way in ways)),
        _row("---", ("---" for _ in ways)),
    ]
    for name in names:
        cells = (_cell(runs.get((name, way, mode))) for way in ways)
        rows.append(_row(f"{WEATHERS[name].title} (`{name}`)", cells))
    return "\n".join(rows)


def _row(first: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


def _cell(run: Run | None) -> str:
    if run is None:
        return ""
    outcome = run.outcome
    figures = (
        f"{outcome.answered} of {outcome.offered}",
        _seconds(outcome.percentile_s(0.5)),
        _seconds(outcome.percentile_s(0.99)),
        f"{outcome.calls:,}",
    )
    return " · ".join(figures) + _refused(outcome)


def _refused(outcome: Outcome) -> str:
    return "".join(f" · {count} × {code}" for code, count in outcome.refused.most_common())


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.0f}"


# --- virtual runs: the same seeds in every way ---

Seeds = Sequence[Outcome]
"""One way's outcomes, seed by seed."""
_VIRTUAL_WIDTHS: Final = (20, 22, 22, 22, 15, 15, 15, 15, 6, 6, 7)


class Compared(NamedTuple):
    """One weather: Headgate beside the SDK alone, means and the worst seed; and the bounds that are asked for."""

    answered: float
    worst: float
    p50: float | None
    p50_most: float
    p99: float | None
    calls: float
    calls_most: float
    retries_answered: float
    retries_calls: float
    """Per answer: who answers more may call more."""

    @property
    def failed(self) -> list[str]:
        """What misses its bound."""
        checks = {
            "answered": self.answered >= 0.995,
            "worst seed": self.worst >= 0.965,
            "p50": self.p50 is None or self.p50 <= self.p50_most,
            "p99": self.p99 is None or self.p99 <= 1.2,
            "calls": self.calls <= self.calls_most,
            "retries": self.retries_answered >= 0.995 and self.retries_calls <= 1.02,
        }
        return [name for name, holds in checks.items() if not holds]


def compare(weather: Weather, sdk: Seeds, gate: Seeds, retries: Seeds) -> Compared:
    fair = mean([outcome.share for outcome in sdk]) >= FAIR and not weather.over
    sdk_p50_s, sdk_calls = _mean_percentile_s(sdk, 0.5), _per_answer(sdk)
    return Compared(
        answered=_ratio([one.answered for one in gate], [one.answered for one in sdk]),
        worst=min(_ratio([one.answered], [other.answered]) for one, other in zip(gate, sdk, strict=True)),
        p50=_mean_percentile_s(gate, 0.5) / sdk_p50_s if fair else None,
        p50_most=1.15 + 0.005 / sdk_p50_s,
        p99=_mean_percentile_s(gate, 0.99) / _mean_percentile_s(sdk, 0.99) if fair else None,
        calls=_per_answer(gate) / sdk_calls if sdk_calls else 1.0,
        calls_most=min(weather.most_calls, weather.wastes_at_most / max(1e-9, sdk_calls)),
        retries_answered=_ratio([one.answered for one in retries], [one.answered for one in gate]),
        retries_calls=_per_answer(retries) / _per_answer(gate) if sdk_calls else 1.0,
    )


def _mean_percentile_s(outcomes: Seeds, share: float) -> float:
    return mean([outcome.percentile_s(share) for outcome in outcomes])


def virtual_heading() -> str:
    return (
        _columns(
            "answered · p50 · calls",
            "SDK alone",
            "Headgate",
            "… 2 retries",
            "answered ÷ SDK",
            "p50 ÷ SDK",
            "p99 ÷ SDK",
            "calls ÷ SDK",
            "ans.",
            "calls",
            "oracle",
            "misses",
        )
        + "\nMeans of all seeds; answered ÷ SDK with the worst seed. ans. and calls: with 2 retries ÷ without."
    )


def virtual_row(name: str, by_way: Mapping[Way, Seeds]) -> str:
    """Mean figures of each way, and the ratios."""
    compared = compare(WEATHERS[name], by_way[Way.SDK], by_way[Way.HEADGATE], by_way[Way.RETRIES])
    return _columns(
        name,
        *(_means(by_way[way]) for way in (Way.SDK, Way.HEADGATE, Way.RETRIES)),
        f"{compared.answered:.3f} ({compared.worst:.2f})",
        "" if compared.p50 is None else f"{compared.p50:.2f}",
        "" if compared.p99 is None else f"{compared.p99:.2f}",
        f"{compared.calls:.2f}",
        f"{compared.retries_answered:.2f}",
        f"{compared.retries_calls:.2f}",
        f"{mean([one.share for one in by_way[Way.ORACLE]]):.1%}" if Way.ORACLE in by_way else "",
        ", ".join(compared.failed),
    )


def beside(name: str, model: Outcome, real: Outcome) -> Iterator[str]:
    """The SDK's model and the real SDK, figure by figure, with the difference."""
    for what, one, other in (
        ("answered", model.answered, real.answered),
        ("p50 s", model.percentile_s(0.5), real.percentile_s(0.5)),
        ("p99 s", model.percentile_s(0.99), real.percentile_s(0.99)),
        ("calls", model.calls, real.calls),
    ):
        yield f"{name:20}{what:10}{one:10.2f}{other:10.2f}{one / max(1e-9, other) - 1:+9.1%}"


def _columns(first: str, *others: str) -> str:
    *sized, last = others
    widths = _VIRTUAL_WIDTHS[1:]
    cells = (f"{text:{width}}" for text, width in zip(sized, widths, strict=True))
    return f"{first:{_VIRTUAL_WIDTHS[0] + 3}}{' '.join(cells)} {last}".rstrip()


def _means(outcomes: Seeds) -> str:
    p50_s = _mean_percentile_s(outcomes, 0.5)
    share = mean([outcome.share for outcome in outcomes])
    return f"{share:6.1%} · {_seconds(p50_s)} · {min(99.99, _per_answer(outcomes)):.2f}"


def _per_answer(outcomes: Seeds) -> float:
    """All seeds together: one seed without any answer would distort a mean of ratios."""
    return sum(one.calls for one in outcomes) / max(1, sum(one.answered for one in outcomes))


def _ratio(some: Sequence[int], others: Sequence[int]) -> float:
    """Neither has any: as good as each other."""
    return sum(some) / sum(others) if sum(others) else 1.0
