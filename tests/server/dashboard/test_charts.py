"""Charts: round scales, bars on top of each other, curves that break where nothing was measured."""

import re

import pytest
from server.dashboard.dashboard_stage import read_html

from headgate.server.dashboard.charts import Line, bars, curves, nice_top


@pytest.mark.parametrize(
    ("value", "top"),
    [
        (0, 1),
        (0.3, 0.5),
        (1, 1),
        (1.1, 2),
        (2.2, 2.5),
        (3, 5),
        (7, 10),
        (10, 10),
        (124, 200),
        (99_999, 100_000),
    ],
)
def test_a_scale_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


def test_bars_stand_on_each_other_and_nothing_draws_nothing() -> None:
    figure = str(
        bars("Requests", [Line("a", "c1", [2, 0]), Line("b", "c2", [3, None])], words=str, since="then")
    )
    first, second = re.findall(r'd="([^"]*)"', figure)
    assert first == "M0 100V60h.8V100z"
    assert second == "M0 60V0h.8V60z"


def test_a_curve_breaks_where_nothing_was_measured() -> None:
    figure = str(curves("Latency", [Line("p50", "c1", [10, 5, None, 10])], words=str, since="then"))
    assert re.findall(r'd="([^"]*)"', figure) == ["M0 0h.5L1 50M3 0h.5"]


def test_a_chart_says_in_words_what_it_shows() -> None:
    read = read_html(
        str(curves("Latency", [Line("half", "c1", [10])], words=lambda value: f"{value:g} ms", since="then"))
    )
    assert ("aria-label", "Latency: half; the scale ends at 10 ms") in read.attributes
    assert "10 ms" in read.text
