"""`headgate batches` as a user meets it: what it prints, what it keeps, how it refuses."""

import json
from pathlib import Path

import pytest
from batches.lines import jsonl, line
from cli.command_stage import Desk

INSTANT = "simulated/instant"


def _create(desk: Desk, content: bytes, *options: str) -> str:
    (desk.folder / "in.jsonl").write_bytes(content)
    answer = desk.run("batches", "create", "in.jsonl", *options)
    assert answer.code == 0, answer.err
    return answer.id


def test_a_file_is_run_and_its_answers_are_where_it_says(desk: Desk) -> None:
    batch_id = _create(desk, jsonl(range(3), model=INSTANT), "--metadata", '{"for": "me"}')
    assert desk.run("batches", "wait", batch_id, "--timeout", "0.1").code == 3
    desk.work()
    waited = desk.run("batches", "wait", batch_id)
    assert waited.code == 0
    told = dict(row.split(maxsplit=1) for row in waited.out.splitlines())
    assert told[batch_id] == "completed"
    assert told["lines"] == "3: 3 completed, 0 failed"
    assert told["metadata"] == "for: me"
    names = [json.loads(one)["custom_id"] for one in Path(told["output"]).read_text().splitlines()]
    assert sorted(names) == ["line 0", "line 1", "line 2"]


def test_bad_lines_are_shown_with_their_numbers(desk: Desk) -> None:
    batch_id = _create(desk, line("a", model=INSTANT) + b"{\n")
    desk.work()
    waited = desk.run("batches", "wait", batch_id)
    assert waited.code == 1
    assert "line 2: invalid_json_line" in waited.out
    heading, row = desk.run("batches", "list").out.splitlines()
    assert heading.split() == ["id", "status", "lines", "done", "failed", "endpoint", "age", "error"]
    assert row.split()[:2] == [batch_id, "failed"]
    assert "line 2: invalid_json_line" in row


def test_the_json_is_the_api_s(desk: Desk) -> None:
    assert desk.run("batches", "list", "--json").json["data"] == []
    assert desk.run("batches", "list").out.startswith("There are no batches.")
    ids = [_create(desk, jsonl(range(1), model=INSTANT)) for _ in range(3)]
    shown = desk.run("batches", "show", ids[0], "--json").json
    assert (shown["object"], shown["status"]) == ("batch", "validating")
    first = desk.run("batches", "list", "--json", "--limit", "2").json
    assert (first["has_more"], first["last_id"]) == (True, ids[1])
    assert f"--after {ids[1]}" in desk.run("batches", "list", "--limit", "2").err
    rest = desk.run("batches", "list", "--json", "--after", ids[1]).json
    assert [one["id"] for one in rest["data"]] == ids[:1]


def test_a_cancelled_batch_can_be_retried(desk: Desk) -> None:
    batch_id = _create(desk, jsonl(range(2), model=INSTANT))
    assert desk.run("batches", "retry", batch_id).code == 2
    assert desk.run("batches", "cancel", batch_id).out == f"{batch_id} is cancelling\n"
    desk.work()
    assert desk.run("batches", "wait", batch_id).code == 1
    assert desk.run("batches", "cancel", batch_id).code == 2
    again = desk.run("batches", "retry", batch_id, "--idempotency-key", "k")
    repeated = desk.run("batches", "retry", batch_id, "--idempotency-key", "k")
    assert again.id == repeated.id != batch_id
    assert "already" in repeated.err
    desk.work()
    shown = desk.run("batches", "show", again.id, "--json").json
    assert shown["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert shown["metadata"] == {"retry_of": batch_id}


@pytest.mark.parametrize(
    "words",
    [
        ("create", "nowhere.jsonl"),
        ("create", "in.jsonl", "--endpoint", "/v1/completions"),
        ("create", "in.jsonl", "--window", "soon"),
        ("create", "in.jsonl", "--metadata", "[1]"),
        ("show", "batch_000000000000nobodys"),
        ("show", "job_000000000000nobodys"),
        ("wait", "nobody"),
        ("cancel", "nobody"),
        ("retry", "nobody"),
        ("list", "--limit", "0"),
        ("list", "--after", "nobody"),
    ],
)
def test_a_mistake_is_told_in_words(desk: Desk, words: tuple[str, ...]) -> None:
    desk.submit("echo", 1)
    (desk.folder / "in.jsonl").write_bytes(jsonl(range(1)))
    answer = desk.run("batches", *words)
    assert answer.code == 2
    assert answer.err
