"""`.env` in the working directory, as every command reads it."""

import json
import os
import signal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from cli.command_stage import PATIENCE_S, Desk, until
from cli.test_serve_command import serving

import headgate

MODEL = "models: {m: {upstreams: [{provider: openai, model: x, api_key: '${SOME_KEY}', slots: 3}]}}\n"


def _write(desk: Desk, dotenv: str, settings: str = MODEL) -> None:
    (desk.folder / ".env").write_text(dotenv)
    (desk.folder / "headgate.yaml").write_text(settings)


def test_the_environment_goes_before_dotenv_and_dotenv_before_the_settings(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = "HEADGATE__MODELS__M__UPSTREAMS__0__SLOTS"
    _write(desk, f"SOME_KEY=hush-hush\n{slots}=5\n")
    answer = desk.run("config", "check")
    assert (answer.code, "5 slots" in answer.out) == (0, True)
    assert "hush" not in answer.out + answer.err
    monkeypatch.setenv(slots, "7")
    assert "7 slots" in desk.run("config", "check").out
    (desk.folder / ".env").write_text(f"{slots}=5\n")
    assert "SOME_KEY is not set" in desk.run("config", "check").err


def test_models_and_the_database_of_dotenv_are_found_without_a_settings_file(desk: Desk) -> None:
    (desk.folder / "headgate.yaml").unlink()
    (desk.folder / ".env").write_text("OPENAI_API_KEY=hush-hush\n")
    assert "openai/*" in desk.run("config", "check").out
    (desk.folder / ".env").write_text("DATABASE_URL=mysql://me:hush-hush@db/x\n")
    answer = desk.run("jobs", "list")
    assert (answer.code, "set by DATABASE_URL" in answer.err, "hush" in answer.err) == (2, True, False)


def test_a_wrong_line_ends_every_command_with_2_and_never_shows_a_secret(desk: Desk) -> None:
    _write(desk, "SOME_KEY=hush-hush\nOTHER hush-hush\n")
    commands = ("config check", "jobs list", "dead list", "doctor", "serve", "work", "outbox list")
    for words in (*commands, "newsletter run", "models list --url http://127.0.0.1:9"):
        answer = desk.run(*words.split())
        assert (answer.code, ".env line 2: must be NAME=value" in answer.err) == (2, True), words
        assert "hush" not in answer.out + answer.err
    assert desk.run("--version").code == 0


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "serve --help",
        "serve --port 1 --help",
        "jobs --help",
        "jobs list --help",
        "jobs",
        "--version",
    ],
)
def test_help_is_shown_whatever_is_wrong_with_dotenv(desk: Desk, words: str) -> None:
    _write(desk, "OTHER hush-hush\n")
    answer = desk.run(*words.split())
    assert ".env" not in answer.out + answer.err
    assert answer.code == 0 if "--" in words else "Usage:" in answer.out + answer.err


def test_a_folder_named_dotenv_stops_no_command(desk: Desk) -> None:
    (desk.folder / ".env").mkdir()
    assert desk.run("config", "check").code == 0


def test_a_command_leaves_the_environment_of_its_caller_as_it_was(desk: Desk) -> None:
    _write(desk, "SOME_KEY=1\n")
    before = dict(os.environ)
    assert desk.run("config", "check").code == 0
    assert {name: value for name, value in os.environ.items() if name != "COLUMNS"} == {
        name: value for name, value in before.items() if name != "COLUMNS"
    }


def test_the_library_reads_no_dotenv(desk: Desk) -> None:
    """A program has an environment of its own, and puts into it what it likes."""
    _write(desk, "SOME_KEY=1\n")
    with pytest.raises(headgate.InvalidSettings, match="SOME_KEY is not set"):
        headgate.read_settings()


def test_a_client_s_gateway_and_key_may_be_in_dotenv(desk: Desk) -> None:
    shown: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers["Authorization"])
            said = json.dumps({"object": "list", "data": [], "has_more": False, "last_id": None}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as gateway:
        thread = Thread(target=gateway.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        url = f"http://127.0.0.1:{gateway.server_port}"
        _write(desk, f"HEADGATE_URL={url}\nHEADGATE_API_KEY=hg-hush\nHEADGATE_OUTBOX=box.db\n")
        answer = desk.run("jobs", "list")
        desk.run("outbox", "add", "echo", "1")
        gateway.shutdown()
        thread.join()
    assert (answer.code, shown) == (0, ["Bearer hg-hush"])
    assert (desk.folder / "box.db").exists()


def test_an_option_that_has_a_variable_finds_it_in_dotenv(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("HEADGATE_LOG_FORMAT=json\n")
    with serving(tmp_path) as served:
        served.process.terminate()
        _, answer = served.process.communicate(timeout=PATIENCE_S)
    assert {json.loads(line)["level"] for line in answer.splitlines()} == {"INFO"}


def test_a_hangup_reads_dotenv_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MODEL=simulated/instant\n")
    upstream = {"provider": "simulated", "model": "${MODEL}"}
    with serving(tmp_path, models={"m": {"upstreams": [upstream]}}) as served:
        assert served.ask("m")[0] == 200
        (tmp_path / ".env").write_text("MODEL=simulated/rejecting\n")
        served.process.send_signal(signal.SIGHUP)
        until(lambda: served.ask("m")[0] == 400)
        (tmp_path / ".env").write_text("MODEL simulated/instant\n")
        served.process.send_signal(signal.SIGHUP)
        served.process.terminate()
        _, answer = served.process.communicate(timeout=PATIENCE_S)
        assert served.process.returncode == 0
        assert ".env line 1: must be NAME=value" in answer
        assert "the old ones stay in force" in answer
