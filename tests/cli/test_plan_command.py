"""`headgate plan` at the keyboard: its screens, its JSON, its pictures, and what it says to mistakes."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.command_stage import Answer, Desk

SETTINGS = """
models:
  m:
    upstreams: [{provider: openai, model: gpt-4o-mini, api_key: x, slots: 2, depth: 0}]
"""
ASKED = ("plan", "--jobs", "6", "--latency", "1")


@pytest.fixture
def plan(desk: Desk) -> Desk:
    (desk.folder / "headgate.yaml").write_text(SETTINGS)
    return desk


def test_a_plan_says_when_how_and_what_to_change(plan: Desk) -> None:
    answer = plan.run(*ASKED, "--finish-by", "2s", columns=80)
    assert answer.code == 0, answer.err
    entries = dict(line.split(maxsplit=1) for line in answer.out.splitlines() if line[:1].strip())
    assert entries["finished"] == "3 s (1 run)"
    assert entries["ends"] == "6 answered"
    assert entries["cost"].startswith("$0.0012")
    assert entries["finish"] == "by  2 s is missed; nothing here is left to chance"
    assert entries["change"].startswith("slots 2 → 4")
    assert max(map(len, answer.out.splitlines())) <= 80


def test_a_sweep_is_a_table_that_fits(plan: Desk) -> None:
    answer = plan.run(*ASKED, "--sweep", "slots=1..3", "--sweep", "interval_s=0,1", columns=80)
    assert answer.code == 0, answer.err
    rows = [line.split() for line in answer.out.splitlines()[-6:]]
    assert [row[:3] for row in rows] == [
        ["1", "0", "6.0"],
        ["1", "1", "6.0"],
        ["2", "0", "3.0"],
        ["2", "1", "6.0"],
        ["3", "0", "2.0"],
        ["3", "1", "6.0"],
    ]


def test_json_has_everything(plan: Desk) -> None:
    found: Any = plan.run(*ASKED, "--json").json
    assert found["summary"]["span_s"] == pytest.approx(3, rel=0.01)
    assert found["settings"]["slots"] == 2
    assert found["advice"]["steps"][0]["changes"] == [{"setting": "slots", "before": 2, "after": 4}]
    swept: Any = plan.run(*ASKED, "--sweep", "slots=1,2", "--json").json
    assert [row["changes"] for row in swept["rows"]] == [{"slots": 1}, {"slots": 2}]


def test_the_command_line_goes_before_the_file(plan: Desk) -> None:
    (plan.folder / "s.yaml").write_text(
        "upstream: {latency: 9, failure_latency_s: 0.5}\nload: {calls: 3}\ntokens_out: 7\n"
    )
    found: Any = plan.run("plan", "--scenario", "s.yaml", "--latency", "2", "--jobs", "4", "--json").json
    assert found["scenario"]["upstream"]["latency"] == "2"
    assert found["scenario"]["upstream"]["failure_latency_s"] == 0.5
    assert found["scenario"]["load"]["jobs"] == 4
    assert found["scenario"]["tokens_out"] == 7


def test_a_weather_is_compared_with_the_sdk_alone(plan: Desk) -> None:
    options = (
        "--calls",
        "200",
        "--per-s",
        "40",
        "--latency",
        "0.4/1",
        "--set",
        "slots=64",
        "--set",
        "depth=1000",
    )
    answer = plan.run("plan", *options, "--weather", "quota=20", "--runs", "2", columns=80)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert "at most 20 requests a second, a 429 asks to wait 1 s" in " ".join(answer.out.split())
    table = next(place for place, line in enumerate(lines) if "calls/answer" in line)
    assert lines[table].split() == ["answered", "p50", "answer", "p99", "answer", "calls/answer", "429s"]
    gateway, sdk = (re.split(r"\s{2,}", line) for line in lines[table + 1 : table + 3])
    assert gateway[:2] == ["Headgate", "200 of 200"]
    assert sdk[0] == "SDK alone"
    assert float(sdk[1].split()[0]) < 160
    assert float(sdk[4]) > 2 > float(gateway[4])
    learned = " ".join(answer.out.partition("learned")[2].split())
    assert re.match(r"limited to \S+ starts/s(: refusals began above it|, on trial)", learned), learned
    assert max(map(len, lines)) <= 80


def test_a_weather_comes_over_the_file_but_for_a_hint_that_is_written_there(plan: Desk) -> None:
    (plan.folder / "s.yaml").write_text(
        "upstream: {latency: 1, throttled: 0.5, retry_after_s: 3, requests_per_window: [9, 30]}\nload: {calls: 3}\n"
    )
    words = ("plan", "--scenario", "s.yaml", "--weather", "chance=0.1", "--weather", "in-flight=2", "--json")
    found: Any = plan.run(*words).json
    shape = found["scenario"]["upstream"]
    assert (shape["throttled"], shape["retry_after_s"]) == (0.1, 3)
    assert (shape["max_in_flight"], shape["requests_per_window"]) == (2, [9, 30])
    assert found["alone"]["items"] == found["summary"]["items"] == 3
    assert found["summary"]["learned"][0]["state"] == "open"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--weather", "quota=20", "--jobs", "5"), "--latency 5"),
        (("--weather", "fog=1", "--jobs", "5", "--latency", "1"), "'fog' is no weather; known: chance=0.1"),
        (("--weather", "qouta=1", "--jobs", "5", "--latency", "1"), "did you mean 'quota'? known"),
        (("--weather", "quota=0", "--jobs", "5", "--latency", "1"), "--weather': 'quota=0': write quota=20"),
        (("--weather", "chance=2", "--jobs", "5", "--latency", "1"), "at most 1"),
        (
            ("--weather", "chance=0.1", "--throttled", "0.2", "--jobs", "5", "--latency", "1"),
            "--weather chance: throttled is said twice",
        ),
        (
            ("--weather", "quota=2", "--weather", "quota=3", "--jobs", "5", "--latency", "1"),
            "--weather quota: requests_per_second is said twice",
        ),
        (("--weather", "chance=0.6", "--failing", "0.6", "--jobs", "5", "--latency", "1"), "at most 1"),
        (("--latency", "1"), "--jobs"),
        (("--jobs", "5"), "say how openai/gpt-4o-mini behaves"),
        (("--jobs", "5", "--failing", "0.5"), "--latency"),
        (("--latency", "1", "--per-s", "2"), "--jobs"),
        (("--jobs", "0", "--latency", "1"), "--jobs"),
        (("--jobs", "5", "--latency", "soon"), "length of time"),
        (("--jobs", "5", "--latency", "1", "--outage", "60"), "FROM..TO"),
        (("--jobs", "5", "--latency", "1", "--finish-by", "soon"), "length of time"),
        (("--jobs", "5", "--latency", "1", "--model", "n"), "no model 'n'"),
        (("--jobs", "5", "--latency", "1", "--set", "slots=0"), "slots"),
        (("--jobs", "5", "--latency", "1", "--set", "slots=1.5"), "whole number"),
        (("--jobs", "5", "--latency", "1", "--set", "slot=2"), "slots"),
        (("--jobs", "5", "--latency", "1", "--set", "slots=1..3"), "--sweep"),
        (("--jobs", "5", "--latency", "1", "--sweep", "slots"), "slots=1..8"),
        (("--jobs", "5", "--latency", "1", "--scenario", "none.yaml"), "no such file"),
        (("--jobs", "5", "--latency", "1", "--plot", "p.gif"), ".png"),
        (("--jobs", "5", "--latency", "1", "--plot", "none/p.png"), "no such folder"),
    ],
)
def test_mistakes_are_told_and_end_with_2(plan: Desk, options: tuple[str, ...], told: str) -> None:
    answer = plan.run("plan", *options)
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err


def test_a_wrong_scenario_is_told_with_its_place(plan: Desk) -> None:
    (plan.folder / "s.yaml").write_text("upstreams: {other/model: {latency: 1}}\nload: {jobs: 3}\n")
    answer = plan.run("plan", "--scenario", "s.yaml", "--latency", "1")
    assert answer.code == 2
    assert "no upstream 'other/model'; it has openai/gpt-4o-mini" in answer.err


@pytest.mark.parametrize("sweep", [(), ("--sweep", "slots=1..3")])
def test_a_plot_is_a_picture(plan: Desk, sweep: tuple[str, ...]) -> None:
    answer = plan.run(*ASKED, *sweep, "--finish-by", "2s", "--plot", "p.png")
    assert answer.code == 0, answer.err
    assert (plan.folder / "p.png").read_bytes().startswith(b"\x89PNG")


def test_without_the_extra_a_plot_is_refused_before_anything_is_played(
    plan: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    answer = plan.run(*ASKED, "--plot", "p.png")
    assert (answer.code, answer.out) == (2, "")
    assert "'.[plot]'" in answer.err


def test_nothing_of_the_user_s_is_written(plan: Desk) -> None:
    before = _files(plan.folder)
    plan.run(*ASKED)
    assert _files(plan.folder) == before


def _files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_a_simulated_model_is_described_by_its_settings(desk: Desk) -> None:
    (desk.folder / "headgate.yaml").write_text("")
    answer: Answer = desk.run("plan", "--many", "8", "--set", "slots=2", "--set", "depth=0")
    assert answer.code == 0, answer.err
    # The starts of a first burst are 2 ms apart.
    assert "finished   202 ms" in answer.out
