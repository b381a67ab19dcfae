"""Sweeps: a setting's values on the command line, and every combination of several."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import msgspec

from headgate.core.errors import SettingsError
from headgate.planner.run import Bench, Changes
from headgate.planner.scenario import Scenario
from headgate.planner.summary import Summary, play

MOST_ROWS: Final = 200


class Row(msgspec.Struct, frozen=True):
    """One combination and what came of it."""

    changes: Mapping[str, float]
    summary: Summary


def read_change(text: str) -> tuple[str, list[float]]:
    """`slots=4`, `slots=1..8`, `interval_s=0,1.25,2.5`: a name and its values."""
    name, equals, values = text.partition("=")
    if not equals or not name.strip() or not values.strip():
        raise SettingsError(
            f"{text!r:.60}: write a setting and its values, such as slots=1..8 or depth=10,20"
        )
    return name.strip(), [value for part in values.split(",") for value in _values(text, part)]


def combinations(swept: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every combination, the last setting changing fastest."""
    rows = [dict(zip(swept, values, strict=True)) for values in product(*swept.values())]
    if len(rows) > MOST_ROWS:
        raise SettingsError(f"that are {len(rows):,} combinations; a sweep takes at most {MOST_ROWS}")
    return rows


def play_rows(
    bench: Bench,
    scenario: Scenario,
    rows: Sequence[Mapping[str, float]],
    *,
    changes: Changes,
    seed: int,
    runs: int | None,
) -> Iterator[Row]:
    for row in rows:
        bench.values({**changes, **row})  # A value that cannot be is told before anything is played.
    for row in rows:
        summary, _ = play(bench, scenario, changes={**changes, **row}, seed=seed, runs=runs)
        # All rows have as many runs as the first: a table compares like with like.
        runs = summary.runs
        yield Row(row, summary)


def _values(text: str, part: str) -> list[float]:
    first, dots, last = part.partition("..")
    try:
        if not dots:
            return [_number(first)]
        start, end = int(first), int(last)
    except ValueError:
        raise SettingsError(
            f"{text!r:.60}: {part!r:.40} is neither a number nor a range of whole numbers, such as 1..8"
        ) from None
    if end < start or end - start > MOST_ROWS:
        raise SettingsError(f"{text!r:.60}: a range goes upwards, by at most {MOST_ROWS}")
    return list(range(start, end + 1))


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number
