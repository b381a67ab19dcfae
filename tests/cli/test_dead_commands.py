"""`headgate dead` as a user meets it: look, replay, discard, one by one and many at once."""

import os
import pty
import re
import select
import signal
import subprocess
import sys

import pytest
from cli.command_stage import FIXTURES, PATIENCE_S, Desk, end, until

from headgate.core.job import JobState


def _bury(desk: Desk, count: int = 1, task: str = "refuse") -> list[str]:
    ids = [desk.submit(task, {"text": f"no {number}"}) for number in range(count)]
    desk.work()
    return ids


def _states(desk: Desk) -> list[str]:
    return [job["state"] for job in desk.run("jobs", "list", "--json").json["data"]]


def test_a_store_without_dead_letters_says_so_in_words(desk: Desk) -> None:
    assert desk.run("dead", "list").out == "There are no dead letters.\n"
    assert desk.run("dead", "list", "--task", "echo").out == "No dead letters match.\n"
    assert desk.run("dead", "list", "--json").json["data"] == []


def test_the_table_and_its_json_tell_the_same(desk: Desk) -> None:
    [dead] = _bury(desk)
    heading, row = desk.run("dead", "list").out.splitlines()
    assert heading.split() == ["id", "task", "reason", "try", "model", "age", "error"]
    assert row.split()[:5] == [dead, "refuse", "permanent", "1/5", "-"]
    assert row.endswith("rejected: no 0")
    listed = desk.run("dead", "list", "--json").json["data"][0]
    assert (listed["id"], listed["reason"], listed["error_class"]) == (dead, "permanent", "rejected")
    shown = desk.run("dead", "show", dead, "--json").json
    assert (shown["id"], shown["input"], len(shown["history"])) == (dead, {"text": "no 0"}, 1)


def test_filters_choose(desk: Desk) -> None:
    [refused], [stumbled] = _bury(desk), _bury(desk, task="stumble")

    def ids(*words: str) -> list[str]:
        return [job["id"] for job in desk.run("dead", "list", "--json", *words).json["data"]]

    assert ids() == [stumbled, refused]
    assert ids("--task", "refuse") == ids("--reason", "permanent") == ids("--class", "rejected") == [refused]
    assert ids("--reason", "exhausted") == [stumbled]
    assert ids("--model", "simulated") == []
    assert ids("--since", "1h") == ids("--until", "2999-01-01T00:00:00Z") == [stumbled, refused]
    assert ids("--until", "1h") == ids("--since", "2999-01-01T00:00:00+01:00") == []


def test_a_moment_nobody_can_place_is_exit_code_2(desk: Desk) -> None:
    for when in ("yesterday", "2026-01-31T12:00:00", "5x"):
        answer = desk.run("dead", "list", "--since", when)
        assert answer.code == 2
        assert "90s, 30m, 2h, 7d" in answer.err


def test_a_job_that_lives_is_no_dead_letter(desk: Desk) -> None:
    job_id = desk.submit("echo", 1)
    for verb in ("show", "replay", "discard"):
        answer = desk.run("dead", verb, job_id)
        assert answer.code == 2
        assert f"job {job_id} is pending, not a dead letter" in answer.err


def test_one_is_replayed_as_it_is_or_with_another_input(desk: Desk) -> None:
    [dead] = _bury(desk)
    assert desk.run("dead", "replay", dead).out == f"{dead} replayed\n"
    desk.work()
    edited = desk.run("dead", "replay", dead, "--input", '{"text": "better"}')
    assert (edited.code, edited.out) == (0, f"{dead} replayed\n")
    job = desk.look(dead)
    assert (job.state, job.input, job.generation) == (JobState.PENDING, {"text": "better"}, 3)
    assert [entry.outcome for entry in job.history] == ["failed", "replayed", "failed", "replayed"]
    assert job.history[-1].by
    assert 'the input was {"text":"no 0"}' in desk.run("jobs", "show", dead).out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ID", "--input", "{bad"], "not JSON"),
        (["ID", "--input", '{"txt": 1}'], "missing required field `text`"),
        (["ID", "--input", "null"], "not null"),
        (["ID", "ID2", "--input", "1"], "for one dead letter"),
        (["--task", "refuse", "--input", "1"], "for one dead letter"),
        (["ID", "--task", "refuse"], "either ids, or a filter"),
        ([], "either ids, or a filter"),
        (["--task", "refuse"], "Add --yes to replay them."),
        (["--task", "refuse", "--yes", "--per-second", "0"], "--per-second"),
    ],
)
def test_a_wrong_replay_is_exit_code_2_and_changes_nothing(words: list[str], says: str, desk: Desk) -> None:
    [dead] = _bury(desk)
    answer = desk.run("dead", "replay", *(dead if word == "ID" else word for word in words))
    assert answer.code == 2
    assert says in answer.err
    assert _states(desk) == ["dead_letter"]


def test_one_id_that_is_wrong_does_not_keep_the_others_from_it(desk: Desk) -> None:
    first, second = _bury(desk, 2)
    answer = desk.run("dead", "discard", first, "job_nowhere", second)
    assert answer.code == 2
    assert answer.out == f"{first} discarded\n{second} discarded\n"
    assert answer.err == "headgate: there is no job 'job_nowhere'\n"


def test_many_are_replayed_by_filter_and_only_those(desk: Desk) -> None:
    _bury(desk, 3)
    _bury(desk, 1, task="stumble")
    answer = desk.run("dead", "replay", "--task", "refuse", "--yes")
    assert (answer.code, answer.out) == (0, "3 dead letters replayed.\n")
    assert sorted(_states(desk)) == ["dead_letter", "pending", "pending", "pending"]
    assert desk.run("dead", "replay", "--task", "refuse", "--yes").out == "No dead letters match.\n"


def test_many_are_discarded_by_filter(desk: Desk) -> None:
    _bury(desk, 2)
    assert desk.run("dead", "discard", "--reason", "permanent", "--yes").out == "2 dead letters discarded.\n"
    assert _states(desk) == ["cancelled", "cancelled"]
    assert "discarded" in desk.run("jobs", "list").out


def test_a_dry_run_counts_and_changes_nothing(desk: Desk) -> None:
    ids = _bury(desk, 2)
    counted = desk.run("dead", "discard", "--since", "1h", "--dry-run")
    assert (counted.code, counted.out) == (0, "2 dead letters match: 2 refuse. Nothing was changed.\n")
    assert desk.run("dead", "replay", ids[0], "--dry-run").out == f"{ids[0]} would be replayed\n"
    assert _states(desk) == ["dead_letter", "dead_letter"]


def test_without_a_terminal_nobody_can_agree(desk: Desk) -> None:
    _bury(desk, 2)
    answer = desk.run("dead", "discard", "--task", "refuse", stdin="y\n")
    assert (answer.code, answer.out) == (2, "")
    assert "2 dead letters match: 2 refuse." in answer.err
    assert "Add --yes to discard them." in answer.err
    assert _states(desk) == ["dead_letter", "dead_letter"]


@pytest.mark.parametrize(("said", "code", "state"), [("y\n", 0, "cancelled"), ("n\n", 1, "dead_letter")])
def test_on_a_terminal_somebody_is_asked(said: str, code: int, state: str, desk: Desk) -> None:
    _bury(desk, 2)
    ended, screen = _on_a_terminal(desk, said, "dead", "discard", "--task", "refuse")
    assert "2 dead letters match: 2 refuse." in screen
    assert "Discard them? [y/N]" in screen
    assert ended == code
    assert _states(desk) == [state, state]


def test_ctrl_c_stops_between_two_steps_and_says_how_many_were_done(desk: Desk) -> None:
    _bury(desk, 6)
    process = desk.start("dead", "discard", "--task", "refuse", "--yes", "--per-second", "1")
    until(lambda: "cancelled" in _states(desk))
    process.send_signal(signal.SIGINT)
    answer = end(process)
    assert answer.code == 130
    done = _states(desk).count("cancelled")
    assert 0 < done < 6
    assert re.fullmatch(rf"Stopped: {done} dead letters? discarded of 6\. .*\n", answer.out)


def _on_a_terminal(desk: Desk, said: str, *words: str) -> tuple[int, str]:
    """Run a command with a terminal for its streams, and answer its question."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", *words],
        cwd=desk.folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FIXTURES), "TERM": "xterm", "COLUMNS": "80"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    screen, answered = "", False
    while select.select([ours], [], [], PATIENCE_S)[0]:
        try:
            screen += os.read(ours, 4096).decode()
        except OSError:
            break
        if "[y/N]" in screen and not answered:
            answered = True
            os.write(ours, said.encode())
    os.close(ours)
    return process.wait(PATIENCE_S), screen
