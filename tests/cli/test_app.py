"""The command line as a user meets it: real processes, exit codes, and no tracebacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headgate


def _run(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headgate", *words],
        cwd=cwd,
        env={
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "COLUMNS": "100",
            **(env or {}),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_version_is_the_package_s(tmp_path: Path) -> None:
    assert _run("--version", cwd=tmp_path).stdout == f"headgate {headgate.__version__}\n"


def test_config_check_prints_what_is_in_force_and_the_worst_case(tmp_path: Path) -> None:
    (tmp_path / "headgate.yaml").write_text(
        "models: {summary: {upstreams: [{provider: simulated, slots: 2}, {provider: simulated}]}}"
    )
    done = _run("config", "check", cwd=tmp_path)
    assert done.returncode == 0
    assert "summary: worst case: 6 calls, 300 s" in done.stdout
    assert "2 slots" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("config", "check", "--config", "nowhere.yaml"), "nowhere.yaml"),
        (("config", "check"), "models.summary.upstreams[0].slots"),
        (("demo", "--calls", "0"), "--calls"),
        (("nonsense",), "nonsense"),
    ],
)
def test_a_user_s_mistake_is_exit_code_2_and_a_message(
    words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    (tmp_path / "headgate.yaml").write_text(
        "models: {summary: {upstreams: [{provider: simulated, slots: -1}]}}"
    )
    done = _run(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    (tmp_path / "headgate.yaml").write_text("models: {summary: {upstreams: [{provider: simulated}]}}")
    done = _run("config", "check", cwd=tmp_path, env={"HEADGATE__MODELS__SUMMARY__RETRY__MAX_ATTEMPTS": "7"})
    assert "summary: worst case: 7 calls, 300 s" in done.stdout


def test_config_check_finds_tasks_that_cannot_be_loaded(tmp_path: Path) -> None:
    """Otherwise the first to hear of it is whoever restarts the gateway."""
    (tmp_path / "headgate.yaml").write_text("jobs: {tasks: [nowhere.tasks]}")
    done = _run("config", "check", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere" in done.stderr
