"""`headgate demo` as a stranger meets it: real processes, a verdict, and nothing left behind, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli.command_stage import PATIENCE_S, Answer, end, until

SMALL = ("--seconds", "2", "--calls", "24", "--jobs", "10", "--lines", "3", "--keys", "2")
RUBBISH = {
    "OPENAI_API_KEY": "sk-not-for-the-demo",
    "HEADGATE_URL": "http://127.0.0.1:9",
    "HEADGATE_API_KEY": "hg-not-for-the-demo",
    "HEADGATE__LISTEN": "nonsense",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "DATABASE_URL": "postgresql://127.0.0.1:9/nobody",
}


class Place:
    """A folder to be in that must stay as it is, and one for temporary files that must be empty again."""

    def __init__(self, folder: Path) -> None:
        self.here = folder / "here"
        self.temporary = folder / "temporary"
        for made in (self.here, self.temporary):
            made.mkdir()
        self.here.chmod(0o555)

    def demo(self, *words: str) -> "subprocess.Popen[str]":
        passed_on = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        return subprocess.Popen(
            [sys.executable, "-m", "headgate", "demo", *words],
            cwd=self.here,
            env={**passed_on, **RUBBISH, "TMPDIR": str(self.temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def is_clean(self) -> bool:
        return not (list(self.here.iterdir()) or list(self.temporary.iterdir()) or self._processes())

    def _processes(self) -> list[str]:
        """Those of the demo have its folder on their command line."""
        lines = (_command_line(process) for process in Path("/proc").glob("[0-9]*"))
        return [line for line in lines if str(self.temporary) in line]


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _hear(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    pytest.fail(f"it never said {words!r}")


def test_a_small_storm_ends_with_a_verdict_and_leaves_nothing_behind(place: Place) -> None:
    """Whatever lies around: a key, a proxy, a database and settings that nobody meant for it."""
    done: Answer = end(place.demo(*SMALL))
    assert done.code == 0, done.out + done.err
    assert "PASS  nothing lost, nothing done twice, every promise kept" in done.out
    assert "poison: killed each worker that ran it" in done.out
    figures = {line.split("  ")[0]: line.split()[1:] for line in done.out.splitlines() if line}
    assert figures["replayed"][0] == "1"
    assert figures["lost"][0] == figures["doubled"][0] == "0"
    assert place.is_clean()


@pytest.mark.parametrize("moment", ["No keys, no network", "at work"])
def test_ctrl_c_leaves_nothing_behind(place: Place, moment: str) -> None:
    """While the gateway starts, and amid the storm; impatient fingers press it twice."""
    process = place.demo()
    _hear(process, moment)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    until(place.is_clean)
