"""The same commands with `--url`: a gateway does it, and nothing is read or made on this machine."""

import json
import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from batches.lines import jsonl
from cli.command_stage import Desk, end, serving, until


@pytest.fixture
def url(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A gateway; whoever types is in another folder, as on another machine."""
    with serving(desk) as url:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        yield url
        assert [path.name for path in elsewhere.iterdir() if path.suffix != ".jsonl"] == []


def test_a_job_from_its_submission_to_its_result(desk: Desk, url: str) -> None:
    """An operator on another machine has no other way in."""
    submitted = desk.run("jobs", "submit", "echo", '{"text": "hi"}', "--wait", "--url", url)
    assert submitted.code == 0, submitted.err
    job_id = submitted.id
    assert desk.run("jobs", "wait", job_id, "--url", url).json == {"text": "hi"}
    second = desk.run("jobs", "submit", "echo", '{"text": "two"}', "--url", url, "--json").json["id"]
    listed = desk.run("jobs", "list", "--task", "echo", "--limit", "1", "--url", url, "--json").json
    assert ([job["id"] for job in listed["data"]], listed["has_more"]) == ([second], True)
    rest = desk.run("jobs", "list", "--after", listed["last_id"], "--url", url, "--json").json
    assert ([job["id"] for job in rest["data"]], rest["has_more"]) == ([job_id], False)
    assert desk.run("jobs", "show", job_id, "--url", url).out.startswith(job_id)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    later = desk.run("jobs", "submit", "echo", "--run-at", tomorrow, "--url", url).id
    assert desk.run("jobs", "wait", later, "--timeout", "0.1", "--url", url).code == 3
    assert desk.run("jobs", "cancel", later, "--url", url).out == f"{later} is cancelled\n"


def test_dead_letters_are_found_sent_back_and_let_go(desk: Desk, url: str) -> None:
    ids = [
        desk.run("jobs", "submit", "refuse", f'{{"text": "no {number}"}}', "--wait", "--url", url).id
        for number in range(3)
    ]
    listed = desk.run("dead", "list", "--reason", "permanent", "--url", url, "--json").json["data"]
    assert [job["id"] for job in listed] == ids[::-1]
    counted = desk.run("dead", "replay", "--task", "refuse", "--dry-run", "--url", url)
    assert counted.out == "3 dead letters match: 3 refuse. Nothing was changed.\n"
    edited = desk.run("dead", "replay", ids[0], "--input", '{"text": "yes"}', "--url", url)
    assert edited.out == f"{ids[0]} replayed\n"
    desk.run("jobs", "wait", ids[0], "--url", url)
    done = desk.run("dead", "discard", "--task", "refuse", "--yes", "--url", url)
    assert (done.code, done.out) == (0, "3 dead letters discarded.\n")
    assert desk.run("dead", "list", "--url", url).out == "There are no dead letters.\n"
    again = desk.run("dead", "discard", ids[1], "--dry-run", "--url", url)
    assert (again.code, "not a dead letter" in again.err) == (2, True)


def test_a_batch_is_uploaded_and_told_with_where_its_output_is(desk: Desk, url: str) -> None:
    Path("in.jsonl").write_bytes(jsonl(range(3), model="simulated/instant"))
    batch_id = desk.run("batches", "create", "in.jsonl", "--url", url).id
    ended = desk.run("batches", "wait", batch_id, "--url", url)
    assert ended.code == 0, ended.err
    assert "3 completed, 0 failed" in ended.out
    [output] = re.findall(r"^output +(\S+)$", ended.out, re.MULTILINE)
    with urllib.request.urlopen(output, timeout=10) as lines:
        assert len(lines.read().splitlines()) == 3
    assert [batch["id"] for batch in desk.run("batches", "list", "--url", url, "--json").json["data"]] == [
        batch_id
    ]
    assert desk.run("batches", "retry", batch_id, "--url", url).code == 2
    assert desk.run("batches", "cancel", batch_id, "--url", url).code == 2


def test_the_variable_names_the_gateway_too_unless_settings_are_named(
    desk: Desk, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_URL", url)
    job_id = desk.run("jobs", "submit", "echo", "--wait").id
    assert desk.run("jobs", "show", job_id).code == 0
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:1")
    assert desk.run("jobs", "list").code == 4
    monkeypatch.chdir(desk.folder)
    assert desk.run("jobs", "show", job_id, "--config", "headgate.yaml").code == 0


def test_what_belongs_to_a_database_is_refused_in_words(desk: Desk, url: str) -> None:
    for words in (("list", "--tenant", "acme"), ("submit", "echo", "--tasks", "cli_tasks")):
        answer = desk.run("jobs", *words, "--url", url)
        assert (answer.code, "for the database" in answer.err) == (2, True)
    unknown = desk.run("jobs", "show", "job_0", "--url", url)
    assert (unknown.code, "job_0" in unknown.err) == (2, True)


def test_a_missing_key_is_told_with_what_to_do_and_counted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway's page of metrics is where an operator sees that somebody knocks in vain."""
    key = desk.run("keys", "create", "operator", "--role", "operate").id
    with serving(desk) as url:
        refused = desk.run("jobs", "list", "--url", url)
        assert (refused.code, "put a key into HEADGATE_API_KEY" in refused.err) == (2, True)
        monkeypatch.setenv("HEADGATE_API_KEY", key)
        assert desk.run("jobs", "list", "--url", url).code == 0
        asked = urllib.request.Request(f"{url}/metrics", headers={"x-api-key": key})
        with urllib.request.urlopen(asked, timeout=10) as page:
            assert b'headgate_front_refusals_total{reason="unauthorized"} 1\n' in page.read()


def test_ctrl_c_stops_the_job_that_acts_on_many(desk: Desk, url: str) -> None:
    """Whoever stops it means the work, not the looking at it."""
    jobs = [{"task": "refuse", "input": {"text": "no"}}] * 30
    asked = urllib.request.Request(f"{url}/v1/jobs", json.dumps(jobs).encode())
    with urllib.request.urlopen(asked, timeout=10) as answer:
        last = json.load(answer)["last_id"]
    desk.run("jobs", "wait", last, "--url", url)
    words = ("dead", "discard", "--task", "refuse", "--yes", "--per-second", "2", "--url", url)
    process = desk.start(*words, env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")})
    orders = ("jobs", "list", "--task", "headgate.discard", "--url", url, "--json")
    until(lambda: [job["state"] for job in desk.run(*orders).json["data"]] == ["running"])
    process.send_signal(signal.SIGINT)
    assert re.match(r"Stopped: \d+ dead letters? discarded of 30", end(process).out)
    until(lambda: [job["state"] for job in desk.run(*orders).json["data"]] == ["cancelled"])
