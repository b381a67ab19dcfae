"""`headgate serve` as its users run it: a process, a port, signals."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import internal_errors
import pytest

MODELS: dict[str, Any] = {
    "quick": {"upstreams": [{"provider": "simulated", "latency_s": 0}]},
    "slow": {"upstreams": [{"provider": "simulated", "latency_s": 1.5, "chunks": 5}]},
    "stuck": {"upstreams": [{"provider": "simulated", "latency_s": 600}]},
}


class Served:
    """One process, its address and what it says."""

    def __init__(self, folder: Path, *arguments: str, **settings: Any) -> None:
        self.file = folder / "headgate.yaml"
        self.write(**settings)
        command = [sys.executable, "-m", "headgate", "serve", "--listen", "127.0.0.1:0", *arguments]
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        self.process = subprocess.Popen(
            command, cwd=folder, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        found = re.search(r"http://[0-9.:]+", self.first_line)
        assert found is not None, self.process.communicate()
        self.url = found[0]

    def write(self, **settings: Any) -> None:
        self.file.write_text(json.dumps({"models": MODELS, **settings}))

    def ask(self, model: str, **fields: Any) -> tuple[int, bytes]:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **fields}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def get(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def later(self, *question: str, **fields: Any) -> tuple[threading.Thread, list[Any]]:
        """Ask in a thread."""
        answers: list[Any] = []

        def ask() -> None:
            try:
                answers.append(self.ask(*question, **fields))
            except OSError as error:
                answers.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.5)
        return thread, answers


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, **settings: Any) -> Iterator[Served]:
    served = Served(folder, *arguments, **settings)
    try:
        yield served
    finally:
        served.process.kill()
        _, err = served.process.communicate()
        internal_errors.read(err)


def test_it_says_where_it_listens_and_that_nobody_else_may(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        assert served.get("/health/ready") == 200
        assert "slow" in served.first_line
        assert served.ask("slow")[0] == 200
        served.process.terminate()
        _, told = served.process.communicate(timeout=30)
        assert served.process.returncode == 0
        assert "headgate keys create" in told
        assert told.count("are per process") == 1
        assert "Traceback" not in told


def _said(folder: Path, *arguments: str) -> list[str]:
    """All that a gateway says from its start to its stop, stdout and stderr in the order in which it was written."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    command = [sys.executable, "-m", "headgate", "serve", *arguments]
    lines = []
    with subprocess.Popen(
        command, cwd=folder, env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if "per process" in line:
                process.terminate()
    return lines


def test_the_address_is_the_first_line_and_what_follows_is_short(tmp_path: Path) -> None:
    (tmp_path / "headgate.yaml").write_text(json.dumps({"models": MODELS}))
    first, *others = _said(tmp_path, "--listen", "127.0.0.1:0")

    assert re.match(r"headgate serve: http://127\.0\.0\.1:\d+, ", first)
    assert len(others) <= 10
    said = "\n".join(others)
    assert "slow: worst case: 3 calls, 300 s" in said
    assert "headgate config check" in said


def test_a_start_without_models_says_how_to_get_some(tmp_path: Path) -> None:
    said = "\n".join(_said(tmp_path, "--listen", "127.0.0.1:0"))

    assert "only the simulated model answers" in said
    assert "OPENAI_API_KEY" in said
    assert "headgate.yaml" in said


@pytest.mark.parametrize("by", ["settings", "--listen"])
def test_a_port_of_its_own_beats_that_of_the_address(by: str, tmp_path: Path) -> None:
    port, other = _free_port(), _free_port()
    arguments = ["--listen", f"localhost:{other}"] if by == "--listen" else []
    (tmp_path / "headgate.yaml").write_text(f"listen: localhost:{other}\n")
    first, *_ = _said(tmp_path, "--port", str(port), *arguments)

    assert first.startswith(f"headgate serve: http://localhost:{port}, ")


@pytest.mark.parametrize("port", ["nonsense", "99999", "-1", "127.0.0.1:8400"])
def test_a_port_that_makes_no_sense_is_exit_code_2(tmp_path: Path, port: str) -> None:
    command = [sys.executable, "-m", "headgate", "serve", "--port", port]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 2
    assert "--port" in ended.stderr
    assert "Traceback" not in ended.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_an_address_that_others_can_reach_needs_a_key(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headgate", "serve", "--listen", "0.0.0.0:0"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 2
    assert "headgate keys create" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:99999", "127.0.0.1"])
def test_an_address_that_makes_no_sense_is_told(tmp_path: Path, listen: str) -> None:
    command = [sys.executable, "-m", "headgate", "serve", "--listen", listen]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 2
    assert "listen" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        address = served.url.removeprefix("http://")
        other = tmp_path / "other"
        other.mkdir()
        command = [sys.executable, "-m", "headgate", "serve", "--listen", address]
        ended = subprocess.run(command, cwd=other, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2
        assert f"{address} is taken by pid {served.process.pid}" in ended.stderr
        assert "--port" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_at_a_stop_what_is_being_served_ends_well(tmp_path: Path) -> None:
    """The answer in flight arrives, whole or streamed; who comes now is refused or finds nobody; then it is gone."""
    with serving(tmp_path) as served:
        whole, answered = served.later("slow")
        streamed, told = served.later("slow", stream=True)
        served.process.terminate()
        whole.join(30)
        streamed.join(30)
        assert answered[0][0] == 200
        assert told[0][1].endswith(b"data: [DONE]\n\n")
        assert served.process.wait(30) == 0


def test_what_does_not_end_in_time_is_ended(tmp_path: Path) -> None:
    with serving(tmp_path, limits={"drain_s": 1}) as served:
        thread, answers = served.later("stuck")
        served.process.terminate()
        began = time.monotonic()
        assert served.process.wait(30) == 0
        thread.join(30)
        assert time.monotonic() - began < 10
        assert answers[0][0] == 503


def test_while_somebody_is_served_the_door_says_that_it_is_closing(tmp_path: Path) -> None:
    """A load balancer must hear 503, not find nobody; and whoever comes is told when to ask again."""
    with serving(tmp_path) as served:
        thread, answers = served.later("slow")
        served.process.terminate()
        assert _soon(lambda: served.get("/health/ready") == 503)
        assert served.get("/health/live") == 200
        status, body = served.ask("slow")
        assert (status, json.loads(body)["error"]["code"]) == (503, "draining")
        thread.join(30)
        assert answers[0][0] == 200
        assert served.process.wait(30) == 0


def test_a_stream_that_outlasts_the_drain_is_ended_with_an_error(tmp_path: Path) -> None:
    """Nobody may take what came of it for the whole answer."""
    endless = {"upstreams": [{"provider": "simulated", "latency_s": 0, "chunks": 200, "chunk_gap_s": 0.5}]}
    with serving(tmp_path, limits={"drain_s": 1}, models={**MODELS, "endless": endless}) as served:
        thread, answers = served.later("endless", stream=True)
        served.process.terminate()
        thread.join(30)
        assert b"event: error" in answers[0][1]
        assert b'"draining"' in answers[0][1]
        assert b"[DONE]" not in answers[0][1]
        assert served.process.wait(30) == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        thread, _ = served.later("stuck")
        served.process.terminate()
        time.sleep(1)
        began = time.monotonic()
        served.process.terminate()
        assert served.process.wait(30) == 0
        thread.join(30)
        assert time.monotonic() - began < 10


def test_a_hangup_reads_the_settings_again(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        assert served.ask("new")[0] == 404
        served.write(models={**MODELS, "new": {"upstreams": [{"provider": "simulated"}]}})
        served.process.send_signal(signal.SIGHUP)
        assert _soon(lambda: served.ask("new")[0] == 200)
        served.file.write_text("models: {broken")
        served.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert served.ask("new")[0] == 200
        served.process.terminate()
        _, told = served.process.communicate(timeout=30)
        assert "the old ones stay in force" in told


def test_a_hangup_lifts_the_hold_of_an_upstream_whose_settings_are_unchanged(tmp_path: Path) -> None:
    upstream = {"provider": "simulated", "latency_s": 0, "script": [{"status": 401}] * 3}
    with serving(tmp_path, models={**MODELS, "wrong": {"upstreams": [upstream]}}) as served:
        assert [served.ask("wrong")[0] for _ in range(4)] == [502] * 4
        served.process.send_signal(signal.SIGHUP)
        # A probe would go after 30 s only.
        assert _soon(lambda: served.ask("wrong")[0] == 200)
        served.process.terminate()
        _, log = served.process.communicate(timeout=30)
        assert "the hold of upstream simulated is lifted" in log


@pytest.mark.parametrize("arguments", [(), ("--config", "headgate.yaml")], ids=["found", "named"])
def test_a_file_that_vanished_takes_no_models_away(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with serving(tmp_path, *arguments) as served:
        served.file.unlink()
        served.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        assert served.ask("slow")[0] == 200
        served.process.terminate()
        _, told = served.process.communicate(timeout=30)
        assert "there is no such file" in told
        assert "the old ones stay in force" in told


def _soon(holds: Any) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.05)
    return False
