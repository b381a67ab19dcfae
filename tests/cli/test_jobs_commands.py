"""`headgate jobs` as a user meets it: what it prints, what it keeps, how it refuses."""

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from cli.command_stage import Desk
from rich.cells import cell_len

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold]loud[/bold] \u202ereversed\u009b31m\x00"


# ---- list -------------------------------------------------------------------------------------------------


def test_a_store_without_jobs_says_so_in_words(desk: Desk) -> None:
    assert desk.run("jobs", "list").out.startswith("There are no jobs.")
    assert desk.run("jobs", "list", "--state", "running").out == "No jobs match.\n"


def test_an_empty_list_is_json_too(desk: Desk) -> None:
    assert desk.run("jobs", "list", "--json").json == {
        "object": "list",
        "data": [],
        "has_more": False,
        "last_id": None,
    }


def test_the_table_names_each_job_on_one_line(desk: Desk) -> None:
    done = desk.submit("shout", {"text": "hello"})
    dead = desk.submit("refuse", {"text": "no such label"})
    desk.work()
    heading, first, second = desk.run("jobs", "list").out.splitlines()
    assert heading.split() == ["id", "task", "state", "try", "model", "age", "reason"]
    assert first.split()[:5] == [dead, "refuse", "dead_letter", "1/5", "-"]
    assert "permanent: rejected: no such label" in first
    assert second.split()[:5] == [done, "shout", "completed", "1/5", "simulated/instant"]


def test_the_json_of_a_job_is_msgspec_s(desk: Desk) -> None:
    job_id = desk.submit("echo", {"n": 1})
    shown = desk.run("jobs", "show", job_id, "--json").out
    assert shown.encode() == msgspec.json.encode(desk.look(job_id)) + b"\n"


def test_a_list_goes_on_where_the_page_before_ended(desk: Desk) -> None:
    ids = [desk.submit("echo", number) for number in range(3)]
    first = desk.run("jobs", "list", "--limit", "2", "--json").json
    assert [job["id"] for job in first["data"]] == ids[:0:-1]
    assert (first["has_more"], first["last_id"]) == (True, ids[1])
    second = desk.run("jobs", "list", "--limit", "2", "--json", "--after", first["last_id"]).json
    assert [job["id"] for job in second["data"]] == ids[:1]
    assert second["has_more"] is False
    assert f"--after {ids[1]}" in desk.run("jobs", "list", "--limit", "2").err


def test_a_page_that_ends_exactly_with_the_last_job_has_no_more(desk: Desk) -> None:
    desk.submit("echo", 1)
    desk.submit("echo", 2)
    assert desk.run("jobs", "list", "--limit", "2", "--json").json["has_more"] is False


def test_filters_choose(desk: Desk) -> None:
    echo, shout = desk.submit("echo", 1), desk.submit("shout", {"text": "a"})

    def ids(*words: str) -> list[str]:
        return [job["id"] for job in desk.run("jobs", "list", "--json", *words).json["data"]]

    assert ids("--task", "echo") == [echo]
    assert ids("--model", "simulated/instant") == [shout]
    assert ids("--state", "pending") == [shout, echo]
    assert ids("--state", "completed") == []
    assert ids("--tenant", "somebody-else") == []


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160])
def test_no_line_is_wider_than_the_screen_and_every_id_is_whole(columns: int, desk: Desk) -> None:
    ids = {
        desk.submit("echo", 1, "--model", "simulated/misconfigured"),
        desk.submit("refuse", {"text": f"{HOSTILE} 漢字 " * 20}),
        desk.submit("pass-over", {"text": "nothing new " * 20}),
    }
    desk.work()
    for listing in ("jobs", "dead"):
        lines = desk.run(listing, "list", columns=columns).out.splitlines()
        assert max(cell_len(line) for line in lines) <= columns
    assert {line.split()[0] for line in desk.run("jobs", "list", columns=columns).out.splitlines()} >= ids


# ---- submit -----------------------------------------------------------------------------------------------


def test_the_input_comes_from_the_line_a_file_or_a_pipe(desk: Desk) -> None:
    (desk.folder / "input.json").write_text('{"from": "file"}')
    asked = [("jobs", "submit", "echo", *rest) for rest in (['{"from": "line"}'], ["-"], ["--file", "-"])]
    asked.append(("jobs", "submit", "echo", "--file", "input.json"))
    ids = [desk.run(*words, stdin='{"from": "pipe"}').id for words in asked]
    assert [desk.look(job_id).input["from"] for job_id in ids] == ["line", "pipe", "pipe", "file"]
    assert desk.look(desk.run("jobs", "submit", "echo").id).input is None


def test_every_option_reaches_the_job(desk: Desk) -> None:
    tomorrow = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    options = (
        "--model=simulated --lane=interactive --priority=2 --max-attempts=3 --expires-after-s=90 --timeout-s=7"
        f" --dedup-key=k --no-hold --run-at={tomorrow.isoformat()} --idempotency-key=once"
    ).split()
    job = desk.look(desk.submit("echo", 1, *options, "--metadata", '{"source": "rss"}'))
    assert (job.model, job.lane, job.priority, job.max_attempts) == ("simulated", "interactive", 2, 3)
    assert (job.timeout_s, job.dedup_key, job.hold, job.run_at) == (7, "k", False, tomorrow)
    assert job.metadata == {"source": "rss"}
    assert (job.expires_at - job.run_at).total_seconds() == pytest.approx(90)


def test_the_same_submission_under_its_key_is_the_same_job_and_says_so(desk: Desk) -> None:
    first = desk.submit("echo", 1, "--idempotency-key", "k")
    again = desk.run("jobs", "submit", "echo", "1", "--idempotency-key", "k")
    assert again.id == first
    assert "there already" in again.err
    other = desk.run("jobs", "submit", "echo", "2", "--idempotency-key", "k")
    assert (other.code, other.out) == (2, "")
    assert "used for a different request" in other.err


def test_submit_prints_the_job_itself_as_json(desk: Desk) -> None:
    assert desk.run("jobs", "submit", "echo", "1", "--json").json["state"] == "pending"


def test_a_submission_that_is_not_waited_for_long_enough_is_exit_code_3(desk: Desk) -> None:
    answer = desk.run("jobs", "submit", "echo", "1", "--wait", "0.1")
    assert answer.code == 3
    assert f"headgate jobs wait {answer.id}" in answer.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["echo", "{bad"], "not JSON"),
        (["echo", "hello"], "quotes of its own"),
        (["echo", "1", "--file", "input.json"], "not both"),
        (["echo", "--file", "nowhere.json"], "nowhere.json cannot be read"),
        (["echo", "--metadata", "[1]"], "--metadata must be a JSON object"),
        (["ecco", "1"], "did you mean 'echo'?"),
        (["ecco", "1"], "--tasks"),
        (["shout", '{"txt": 1}'], "missing required field `text`"),
        (["echo", "1", "--model", "nobody"], "nobody"),
        (["echo", "1", "--run-at", "2026-01-31"], "time zone"),
        (["echo", "1", "--run-at", "soon"], "time zone"),
        (["echo", "1", "--priority", "10"], "--priority"),
        (["echo", "1", "--timeout-s", "nan"], "timeout_s must be"),
        (["echo", "1", "--wait", "nan"], "no number of seconds"),
        (["echo", "1", "--tasks", "tasks.py"], "import path"),
        (["echo", "1", "--tasks", "nowhere"], "No module named 'nowhere'"),
        (["echo", "1", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_wrong_submission_is_exit_code_2_with_the_reason_and_no_job(
    words: list[str], says: str, desk: Desk
) -> None:
    answer = desk.run("jobs", "submit", *words)
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err
    assert desk.run("jobs", "list", "--json").json["data"] == []


def test_a_module_of_tasks_that_breaks_is_named_with_the_line_that_broke(desk: Desk) -> None:
    (desk.folder / "broken_tasks.py").write_text("import os\nos.environ['NOT_SET_ANYWHERE']\n")
    answer = desk.run("jobs", "submit", "echo", "1", "--tasks", "broken_tasks")
    assert answer.code == 2
    assert "KeyError: 'NOT_SET_ANYWHERE' (" in answer.err
    assert "broken_tasks.py, line 2)" in answer.err


def test_looking_at_jobs_needs_no_tasks(desk: Desk) -> None:
    job_id = desk.submit("echo", 1)
    (desk.folder / "headgate.yaml").write_text("data_dir: data\njobs: {tasks: [not_on_this_machine]}\n")
    assert job_id in desk.run("jobs", "list").out
    assert desk.run("jobs", "show", job_id).code == 0
    assert desk.run("jobs", "cancel", job_id).code == 0


# ---- show, wait, cancel -------------------------------------------------------------------------------------


def test_show_tells_everything_with_the_history_as_a_timeline(desk: Desk) -> None:
    job_id = desk.submit("stumble", {"text": "over a stone"}, "--metadata", '{"source": "rss"}')
    desk.work()
    shown = desk.run("jobs", "show", job_id).out
    assert shown.startswith(f"{job_id}\n")
    assert "state     dead_letter, exhausted\n" in shown
    assert "error     broken RuntimeError: over a stone\n" in shown
    assert 'metadata  {"source":"rss"}' in shown
    assert shown.count("failed, attempt") == 2
    assert shown.endswith('input\n  {\n    "text": "over a stone"\n  }\n')


def test_long_things_are_shortened_unless_asked_for_in_full(desk: Desk) -> None:
    job_id = desk.submit("echo", {"numbers": list(range(500)), "text": "long " * 100})
    desk.work()
    short = desk.run("jobs", "show", job_id, columns=80).out
    assert "more lines: --full shows all" in short
    assert max(map(len, short.splitlines())) <= 80
    full = desk.run("jobs", "show", job_id, "--full", columns=80).out
    assert json.loads(full.split("\nresult\n")[1])["numbers"] == list(range(500))


def test_hostile_text_does_nothing_to_a_terminal(desk: Desk) -> None:
    dead = desk.submit("refuse", {"text": HOSTILE})
    done = desk.submit("echo", {HOSTILE: HOSTILE})
    desk.work()
    for words in (
        ("jobs", "list"),
        ("dead", "list"),
        ("jobs", "show", dead),
        ("jobs", "show", done, "--full"),
        ("dead", "show", dead),
        ("jobs", "wait", dead),
        ("jobs", "wait", done),
    ):
        answer = desk.run(*words)
        told = answer.out + answer.err
        assert [char for char in told if not char.isprintable() and char != "\n"] == [], words
        assert "[bold]loud[/bold]" in told


def test_what_wait_prints_is_the_result_as_json_also_of_hostile_text(desk: Desk) -> None:
    job_id = desk.submit("echo", {HOSTILE: HOSTILE})
    desk.work()
    assert desk.run("jobs", "wait", job_id).json == {HOSTILE: HOSTILE}


def test_the_exit_code_of_wait_says_how_it_ended(desk: Desk) -> None:
    done = desk.submit("shout", {"text": "hello"})
    skipped = desk.submit("pass-over", {"text": "seen before"})
    dead = desk.submit("refuse", {"text": "no such label"})
    desk.work()
    cancelled = desk.submit("echo", 1)
    desk.run("jobs", "cancel", cancelled)
    waiting = desk.submit("echo", 2)
    answers = {
        job_id: desk.run("jobs", "wait", job_id, "--timeout", "0.1") for job_id in (done, skipped, dead)
    }
    assert (answers[done].code, answers[done].out) == (0, '"HELLO"\n')
    assert (answers[skipped].code, answers[skipped].out) == (0, "")
    assert "seen before" in answers[skipped].err
    assert (answers[dead].code, answers[dead].out) == (1, "")
    assert "no such label" in answers[dead].err
    assert desk.run("jobs", "wait", cancelled).code == 1
    late = desk.run("jobs", "wait", waiting, "--timeout", "0.1")
    assert (late.code, late.out) == (3, "")
    assert "0.1 s" in late.err
    assert desk.run("jobs", "wait", dead, "--json").json["reason"] == "permanent"


def test_cancel_ends_a_pending_job_and_refuses_one_that_has_ended(desk: Desk) -> None:
    job_id = desk.submit("echo", 1)
    assert desk.run("jobs", "cancel", job_id).out == f"{job_id} is cancelled\n"
    done = desk.submit("echo", 1)
    desk.work()
    refused = desk.run("jobs", "cancel", done)
    assert refused.code == 2
    assert "is completed and cannot be cancelled" in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("jobs", "show"),
        ("jobs", "show", "--json"),
        ("jobs", "wait"),
        ("jobs", "cancel"),
        ("dead", "show"),
        ("dead", "replay"),
        ("dead", "discard"),
        ("dead", "replay", "--dry-run"),
    ],
)
def test_an_unknown_id_is_exit_code_2_and_one_clear_line(words: tuple[str, ...], desk: Desk) -> None:
    desk.submit("echo", 1)
    answer = desk.run(*words, "job_nowhere")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "headgate: there is no job 'job_nowhere'\n"


@pytest.mark.parametrize("room", ["jobs", "dead"])
@pytest.mark.parametrize("nonsense", ["nope", "job_nowhere", "", "job_01a1e4e7913631214af57ad05d95528d "])
def test_a_page_after_what_is_no_id_is_refused(room: str, nonsense: str, desk: Desk) -> None:
    """Silently beginning again at the top would send a script round for ever."""
    desk.submit("echo", 1)
    answer = desk.run(room, "list", "--after", nonsense)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == (
        f"headgate: after must be a job's id, the last one of the page before, not {nonsense!r}\n"
    )


def test_a_page_goes_on_after_a_job_that_is_gone(desk: Desk) -> None:
    """Pruned since the page before: its id still says where to go on."""
    ids = [desk.submit("echo", number) for number in range(2)]
    gone = f"{ids[1][:-20]}{'0' * 20}"
    assert [job["id"] for job in desk.run("jobs", "list", "--json", "--after", gone).json["data"]] == ids[:1]
    assert desk.run("dead", "list", "--after", gone).out == "No dead letters match.\n"


def test_another_tenant_s_job_looks_like_none(desk: Desk) -> None:
    job_id = desk.submit("echo", 1, "--tenant", "a")
    assert desk.run("jobs", "show", job_id).code == 2
    assert desk.run("jobs", "show", job_id, "--tenant", "a").code == 0


def test_a_database_out_of_reach_is_exit_code_4_and_says_when_to_come_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE__DATABASE", "postgresql://nobody@127.0.0.1:1/nowhere")
    answer = desk.run("jobs", "list")
    assert answer.code == 4
    assert "cannot be reached" in answer.err
    assert "Check the database (headgate doctor says what is wrong), then try again in" in answer.err


def test_a_task_that_is_not_known_is_told_once_with_what_to_do(desk: Desk) -> None:
    answer = desk.run("jobs", "submit", "ecco", "1")
    assert answer.code == 2
    assert "no task is called 'ecco'; did you mean 'echo'?" in answer.err
    assert answer.err.count("jobs.tasks") == 1
    assert "--tasks" in answer.err
    assert ".." not in answer.err


def test_a_folder_that_cannot_be_written_is_exit_code_2(desk: Desk) -> None:
    (desk.folder / "data").write_text("a file")
    answer = desk.run("jobs", "list")
    assert answer.code == 2
    assert "data" in answer.err
