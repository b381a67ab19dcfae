"""The weathers with real processes: the stub, `headgate serve` and the `openai` SDK; and the command around them."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from weathers.offer import Outcome
from weathers.real import Mode, play_real
from weathers.report import Run, markdown, read_runs, write_runs
from weathers.table import PATIENCE_S, WEATHERS
from weathers.virtual import Way

COMMAND = [sys.executable, str(Path(__file__).parents[2] / "bench" / "weather.py")]


@pytest.mark.parametrize("way", [Way.SDK, Way.HEADGATE, Way.RETRIES])
@pytest.mark.parametrize("mode", [Mode.WHOLE, Mode.STREAMED])
def test_calls_in_calm_weather_are_all_answered_and_reach_the_stub_once(mode: Mode, way: Way) -> None:
    outcome = play_real(WEATHERS["outage-4"].shortened(10), way, mode, seed=1)

    assert (outcome.answered, outcome.calls, dict(outcome.refused)) == (10, 10, {})


def test_a_job_is_answered_when_it_has_completed() -> None:
    outcome = play_real(WEATHERS["outage-4"].shortened(10), Way.HEADGATE, Mode.JOBS, seed=1)

    assert (outcome.answered, outcome.calls, dict(outcome.refused)) == (10, 10, {})


def test_a_stream_that_was_cut_is_no_answer_and_is_not_sent_again() -> None:
    outcome = play_real(WEATHERS["cuts"].shortened(40), Way.SDK, Mode.STREAMED, seed=1)

    assert 0 < outcome.refused.total() < 20
    assert outcome.answered + outcome.refused.total() == outcome.calls == 40


def test_a_cut_answer_and_a_failed_one_are_sent_again_by_the_sdk() -> None:
    cut = play_real(WEATHERS["cuts"].shortened(40), Way.SDK, Mode.WHOLE, seed=1)
    failed = play_real(WEATHERS["errors-50"].shortened(20), Way.SDK, Mode.WHOLE, seed=1)

    assert cut.calls > cut.answered >= 39
    assert failed.calls > 20
    assert set(failed.refused) <= {"500"}


def test_both_upstreams_of_a_weather_are_called_through_headgate() -> None:
    outcome = play_real(WEATHERS["degrading"].shortened(10), Way.HEADGATE, Mode.WHOLE, seed=1)

    assert outcome.answered + outcome.refused.total() == outcome.offered
    assert outcome.calls >= outcome.answered


def test_runs_are_kept_and_shown_as_a_table_in_the_weathers_order(tmp_path: Path) -> None:
    alone = Outcome(4, [0.5, 0.5, 12.0], Counter({"429": 1}), calls=7)
    through = Outcome(4, [0.5] * 4, calls=4)
    runs = [
        Run("quota-20", Way.SDK, Mode.WHOLE, 1, alone),
        Run("chance-10", Way.SDK, Mode.WHOLE, 1, through),
        Run("quota-20", Way.HEADGATE, Mode.WHOLE, 1, through),
        Run("quota-20", Way.HEADGATE, Mode.JOBS, 1, through),
    ]

    write_runs(tmp_path / "runs.json", runs)
    kept = read_runs(tmp_path / "runs.json")

    assert list(kept.values()) == runs
    whole, jobs = markdown(kept).strip().split("\n\nJobs: ")
    assert whole.splitlines()[2:] == [
        "| weather | SDK alone | through Headgate |",
        "| --- | --- | --- |",
        "| one call in ten gets 429, Retry-After 1 (`chance-10`) | 4 of 4 · 0.50 · 0.50 · 4 |  |",
        f"| {WEATHERS['quota-20'].title} (`quota-20`) | 3 of 4 · 12 · {PATIENCE_S:.0f} · 7 · 1 × 429 | 4 of 4 · 0.50 · 0.50 · 4 |",
    ]
    assert jobs.count("quota-20") == 1


def test_the_command_prints_ratios_in_virtual_time() -> None:
    run = subprocess.run(
        [*COMMAND, "--virtual", "--seeds", "2", "--calls", "40", "--oracle", "slow-tail", "bucket-headers"],
        check=True,
        capture_output=True,
        text=True,
    )

    heading, _, *rows = run.stdout.splitlines()
    assert "answered ÷ SDK" in heading
    assert [row.split()[0] for row in rows] == ["slow-tail", "bucket-headers"]


def test_the_command_names_what_it_knows_when_a_weather_is_unknown() -> None:
    run = subprocess.run([*COMMAND, "sunshine"], check=False, capture_output=True, text=True)

    assert run.returncode == 2
    assert run.stdout.startswith("unknown weather: sunshine; known: chance-10, ")
