"""What callers get in bad weather: the official SDK alone beside the same SDK through Headgate.

Run: python bench/weather.py [WEATHER …] [--ways …] [--modes …] [--seed N] [--calls N] [--json FILE] [--markdown FILE]
Real processes: an HTTP stub that behaves as the weather says, `headgate serve` on its defaults, the `openai` SDK. A run takes
20 s to a few minutes, all usual weathers about 45 minutes. `--json` keeps earlier runs of other weathers, so the table can be measured
in parts.

`--virtual` runs the weathers in virtual time before the real gates and dispatcher, with a model of the SDK, over many seeds, and
prints ratios. `--compare-model` runs the real SDK and its model side by side. `--list` names the weathers.
"""

import argparse
import itertools
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from weathers.offer import Outcome
from weathers.real import Mode, play_real
from weathers.report import (
    Run,
    beside,
    line,
    markdown,
    read_runs,
    virtual_heading,
    virtual_row,
    write_runs,
    write_table,
)
from weathers.table import COMPARED, OTHER_KINDS, WEATHERS, Weather
from weathers.virtual import Way, play

REAL_WAYS = (Way.SDK, Way.HEADGATE, Way.RETRIES)


def main() -> int:
    options = _options()
    unknown = set(options.weathers) - set(WEATHERS)
    if unknown:
        print(f"unknown weather: {', '.join(sorted(unknown))}; known: {', '.join(WEATHERS)}")
        return 2
    # A terminated run still stops its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.list:
        print("\n".join(f"{name:20} {weather.title}" for name, weather in WEATHERS.items()))
    elif options.virtual:
        _virtual(_chosen(options, list(WEATHERS)), range(options.seed, options.seed + options.seeds), options)
    elif options.compare_model:
        _compare(_chosen(options, COMPARED), options.seed)
    else:
        _real(options)
    return 0


def _options() -> argparse.Namespace:
    about, _, _ = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("weathers", nargs="*", metavar="WEATHER", help="default: all usual ones (see --list)")
    parser.add_argument("--ways", nargs="+", type=Way, choices=REAL_WAYS, default=REAL_WAYS)
    parser.add_argument(
        "--modes",
        nargs="+",
        type=Mode,
        choices=Mode,
        help="default: whole; streamed and jobs, too, for five weathers",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the load and the weather; with --virtual the first one"
    )
    parser.add_argument("--calls", type=int, help="at most about so many in each run, for a trial")
    parser.add_argument("--json", type=Path, help="a file that keeps the runs")
    parser.add_argument(
        "--markdown",
        type=Path,
        help="a file for the table of all kept runs; what stands above the table's mark is kept",
    )
    parser.add_argument("--list", action="store_true", help="name the weathers")
    parser.add_argument("--virtual", action="store_true", help="virtual time, many seeds, ratios")
    parser.add_argument("--seeds", type=int, default=20, help="how many, with --virtual")
    parser.add_argument(
        "--oracle", action="store_true", help="with --virtual: what the deadlines allow (slower)"
    )
    parser.add_argument("--processes", type=int, default=1, help="with --virtual")
    parser.add_argument("--compare-model", action="store_true", help="the SDK's model beside the real SDK")
    return parser.parse_args()


def _chosen(options: argparse.Namespace, otherwise: Sequence[str]) -> list[Weather]:
    weathers = [WEATHERS[name] for name in options.weathers or otherwise]
    return [weather.shortened(options.calls) if options.calls else weather for weather in weathers]


def _real(options: argparse.Namespace) -> None:
    runs = read_runs(options.json) if options.json else {}
    planned = list(_planned(options))
    for number, (weather, way, mode) in enumerate(planned, 1):
        begun = time.monotonic()
        outcome = play_real(weather, way, mode, options.seed)
        run = Run(weather.name, way, mode, options.seed, outcome)
        runs[run.key] = run
        took_s = time.monotonic() - begun
        print(
            f"{number}/{len(planned)} {weather.name}, {mode}, {way}: {line(outcome)} [{took_s:.0f} s]",
            flush=True,
        )
        if options.json:
            write_runs(options.json, runs.values())
        if options.markdown:
            write_table(options.markdown, markdown(runs))
    if not options.markdown:
        print("\n" + markdown(runs))


def _planned(options: argparse.Namespace) -> Iterator[tuple[Weather, Way, Mode]]:
    usual = [name for name, weather in WEATHERS.items() if weather.usual]
    for weather in _chosen(options, usual):
        modes = options.modes or (Mode if weather.name in OTHER_KINDS else (Mode.WHOLE,))
        for mode, way in itertools.product(modes, options.ways):
            # The SDK has no jobs.
            if (mode, way) != (Mode.JOBS, Way.SDK):
                yield weather, way, mode


def _virtual(weathers: Sequence[Weather], seeds: Sequence[int], options: argparse.Namespace) -> None:
    ways = [*REAL_WAYS, Way.ORACLE] if options.oracle else REAL_WAYS
    print(virtual_heading(), flush=True)
    with ProcessPoolExecutor(options.processes) as pool:
        for weather in weathers:
            played = {
                way: pool.map(
                    _played, *zip(*((weather.name, way, seed, options.calls) for seed in seeds), strict=True)
                )
                for way in ways
            }
            print(
                virtual_row(weather.name, {way: list(outcomes) for way, outcomes in played.items()}),
                flush=True,
            )


def _played(name: str, way: Way, seed: int, calls: int | None) -> Outcome:
    """By name: a weather's parts do not travel between processes."""
    weather = WEATHERS[name]
    return play(weather.shortened(calls) if calls else weather, way, seed)[0]


def _compare(weathers: Sequence[Weather], seed: int) -> None:
    print(f"{'':30}{'model':>10}{'real':>10}{'differs':>9}")
    for weather in weathers:
        model, _ = play(weather, Way.SDK, seed)
        real = play_real(weather, Way.SDK, Mode.WHOLE, seed)
        print("\n".join(beside(weather.name, model, real)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
