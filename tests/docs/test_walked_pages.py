"""The tutorial and the how-tos: a reader who types what they say gets what they promise."""

import configparser
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from docs.walked_pages import DOCS, PATIENCE_S, Walk, blocks, settings_of, walk, walking

from headgate.wiring import read_settings

ROOT = DOCS.parent
ENV = {"OPENAI_API_KEY": "sk-of-a-test", "ANTHROPIC_API_KEY": "sk-ant-of-a-test"}


def test_the_tutorial(tmp_path: Path) -> None:
    with walking("tutorial.md", tmp_path) as walked:
        assert "worst case: 6 calls, 300 s" in walked.said
        assert "idempotent-replayed: true" in walked.said
        assert "permanent" in walked.said
        assert "completed" in walked.said
        _goes_on_with_a_key_of_the_page(walked)


def _goes_on_with_a_key_of_the_page(walked: Walk) -> None:
    """The page ends with keys. Its reader is not locked out: one of those printed opens the dashboard and the commands."""
    url = f"http://127.0.0.1:{walked.port}"
    with httpx.Client(base_url=url, trust_env=False, headers={"sec-fetch-site": "same-origin"}) as browser:
        deadline = time.monotonic() + PATIENCE_S
        while browser.get("/").status_code != 303:
            assert time.monotonic() < deadline, "the gateway never noticed its keys"
            time.sleep(0.1)
        for key in re.findall(r"^hg_\w+$", walked.said, re.MULTILINE):
            browser.post("/login", data={"key": key})
            if browser.get("/keys").status_code == 200:
                assert "summary" in browser.get("/models").text
                walked.run(f"HEADGATE_API_KEY={key} headgate requests list --limit 1")
                return
    raise AssertionError("no key of the page may operate")


def test_dead_letters_are_drained_as_the_page_says(tmp_path: Path) -> None:
    said = walk("howto/dead-letters.md", tmp_path)
    assert "\n3\n" in said
    assert "There are no dead letters." in said


def test_the_task_of_the_page_runs(tmp_path: Path) -> None:
    said = walk("howto/write-a-task.md", tmp_path)
    assert "completed" in said
    assert "Summarise in one sentence" in said


def test_the_provider_of_the_page_answers(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "howto/write-a-provider.md").read_text()
    known: dict[str, Any] = {}
    for language, _, text in blocks(page):
        if language == "python":
            exec(compile(text, "write-a-provider.md", "exec"), known)
    assert capsys.readouterr().out == "HELLO\n"


def test_the_page_on_postgresql_is_walked_on_a_real_server(tmp_path: Path, postgres_url: str) -> None:
    said = walk("howto/postgresql.md", tmp_path, DATABASE_URL=postgres_url)
    assert "postgres" in said
    assert "completed" in said


@pytest.mark.parametrize("page", ["howto/upstreams.md", "howto/deploy.md"])
def test_every_settings_file_is_valid_as_it_stands(page: str, tmp_path: Path) -> None:
    files = settings_of(page)
    assert files
    for name, text in files.items():
        path = tmp_path / name
        path.write_text(text)
        assert read_settings(path, env=ENV).models


def test_the_unit_waits_longer_than_a_drain_takes_and_starts_a_real_command() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # systemd's names have capitals
    unit.read_string((ROOT / "deploy/headgate.service").read_text())
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) >= read_settings({}, env={}).limits.drain_s + 15
    assert service["ExecStart"].endswith("/headgate serve --config /etc/headgate/headgate.yaml")
