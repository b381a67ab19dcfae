"""`headgate work` as an operator meets it: real processes, real signals, nothing lost at a stop."""

import re
import signal
import subprocess
import sys
import time

import pytest
from cli.command_stage import PATIENCE_S, Desk, end, until

from headgate.cli.work import LEFTOVERS_S
from headgate.core.job import JobState
from headgate.runner.worker import STOP_GRACE_S


def _working(desk: Desk, *words: str) -> "subprocess.Popen[str]":
    """A worker that has said its first line."""
    process = desk.start("work", *words)
    assert process.stdout is not None
    assert re.fullmatch(
        r"headgate work: sqlite data/headgate\.db, node_\w+, \d+ workers?, 9 tasks \(chat, echo, .*\)\n",
        process.stdout.readline(),
    )
    return process


def _running(desk: Desk, job_id: str) -> None:
    until(lambda: desk.look(job_id).state is JobState.RUNNING)


def test_a_burst_runs_everything_and_ends_by_itself(desk: Desk) -> None:
    for number in range(12):
        desk.submit("echo", number)
    dead = desk.submit("stumble", {"text": "\x1b[31mover a stone"})
    other = desk.submit("echo", 1, "--tenant", "somebody-else")
    answer = end(desk.start("work", "--burst", "--workers", "4"))
    assert answer.code == 0
    first, last = answer.out.splitlines()
    assert ", 4 workers, 9 tasks (" in first
    assert last == "headgate work: stopped; 13 completed, 1 failed attempt, 1 dead letter"
    assert len(desk.run("jobs", "list", "--state", "completed", "--json").json["data"]) == 12
    assert desk.run("jobs", "show", other, "--tenant", "somebody-else", "--json").json["state"] == "completed"
    assert re.search(rf"^[-\d]+ [:\d]+ WARNING dead_letter job={dead} task=stumble", answer.err, re.MULTILINE)
    assert "\x1b" not in answer.err


def test_a_burst_with_nothing_to_do_ends_at_once(desk: Desk) -> None:
    answer = end(desk.start("work", "--burst"))
    assert answer.code == 0
    assert answer.out.endswith("stopped; nothing done\n")


def test_a_few_jobs_are_told_one_by_one(desk: Desk) -> None:
    done, skipped = desk.submit("echo", 1), desk.submit("pass-over", {"text": "seen before"})
    answer = end(desk.start("work", "--burst"))
    assert f"INFO    {done} echo completed (0.0 s)\n" in answer.err
    assert f"INFO    {skipped} pass-over skipped: seen before (0.0 s)\n" in answer.err


def test_sigterm_gives_a_running_job_back_uncounted(desk: Desk) -> None:
    job_id = desk.submit("nap", {"seconds": 600})
    process = _working(desk, "--drain", "0.2")
    _running(desk, job_id)
    process.send_signal(signal.SIGTERM)
    answer = end(process)
    assert answer.code == 0
    assert answer.out == "headgate work: stopped; 1 given back\n"
    job = desk.look(job_id)
    assert (job.state, job.attempts, job.deferrals, job.crashes) == (JobState.PENDING, 0, 1, 0)


def test_a_hangup_reads_the_settings_again_and_what_runs_goes_on(desk: Desk) -> None:
    """It ended the process, and its jobs counted a crash."""
    job_id = desk.submit("nap", {"seconds": 4})
    process = _working(desk)
    _running(desk, job_id)
    process.send_signal(signal.SIGHUP)
    until(lambda: desk.look(job_id).state is JobState.COMPLETED)
    process.send_signal(signal.SIGTERM)
    answer = end(process)
    assert answer.code == 0
    assert "the models are reloaded: " in answer.err
    assert desk.look(job_id).crashes == 0


def test_what_runs_may_finish(desk: Desk) -> None:
    job_id, waiting = desk.submit("nap", {"seconds": 4}), desk.submit("nap", {"seconds": 600})
    process = _working(desk, "--workers", "1")
    _running(desk, job_id)
    process.send_signal(signal.SIGINT)
    answer = end(process)
    assert answer.code == 0
    assert "stopping: 1 job has 30 s to finish" in answer.err
    assert desk.look(job_id).state is JobState.COMPLETED
    assert desk.look(waiting).attempts == 0


def test_a_second_signal_gives_back_at_once(desk: Desk) -> None:
    job_id = desk.submit("nap", {"seconds": 600})
    process = _working(desk)
    _running(desk, job_id)
    process.send_signal(signal.SIGTERM)
    # The same Ctrl-C may come twice, from the terminal and from who started us: that is one.
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    asked_at = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert end(process).code == 0
    assert time.monotonic() - asked_at < 10
    assert (desk.look(job_id).state, desk.look(job_id).attempts) == (JobState.PENDING, 0)


def test_a_task_that_cannot_be_stopped_does_not_keep_the_process_alive(desk: Desk) -> None:
    job_id = desk.submit("hog", {"seconds": 600})
    process = _working(desk, "--drain", "0")
    _running(desk, job_id)
    process.send_signal(signal.SIGTERM)
    answer = end(process)
    assert (answer.code, answer.out) == (0, "headgate work: stopped; 1 given back\n")
    assert desk.look(job_id).attempts == 0


def test_a_job_can_be_submitted_waited_for_and_cancelled_beside_a_worker(desk: Desk) -> None:
    process = _working(desk)
    try:
        done = desk.run("jobs", "submit", "echo", '{"n": 1}', "--wait")
        assert (done.code, done.out.splitlines()[1:]) == (0, ["{", '  "n": 1', "}"])
        assert desk.run("jobs", "submit", "echo", "1", "--wait", "--json").json["result"] == 1
        failed = desk.run("jobs", "submit", "refuse", '{"text": "no"}', "--wait", "30")
        assert failed.code == 1
        napping = desk.submit("nap", {"seconds": 600})
        _running(desk, napping)
        until(lambda: "1 of 3, half asleep" in desk.run("jobs", "list").out)
        assert "is being cancelled" in desk.run("jobs", "cancel", napping).out
        assert desk.run("jobs", "wait", napping, "--timeout", str(PATIENCE_S)).code == 1
    finally:
        process.send_signal(signal.SIGTERM)
        answer = end(process)
    assert answer.code == 0


def test_tasks_are_found_in_the_folder_where_the_worker_starts(desk: Desk) -> None:
    (desk.folder / "headgate.yaml").write_text("data_dir: data\n")
    (desk.folder / "near.py").write_text(
        "import headgate\n@headgate.task('near')\nasync def near(ctx, input): return 'here'\n"
    )
    job_id = desk.run("jobs", "submit", "near", "1", "--tasks", "near").id
    assert end(desk.start("work", "--burst", "--tasks", "near")).code == 0
    assert desk.look(job_id).result == "here"


def test_the_commands_are_the_same_on_postgres(
    desk: Desk, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE__DATABASE", postgres_url)
    dead = desk.submit("refuse", {"text": "no"})
    answer = end(desk.start("work", "--burst", env={"HEADGATE__DATABASE": postgres_url}))
    assert answer.code == 0
    assert answer.out.startswith("headgate work: postgres ")
    assert desk.run("dead", "list", "--since", "1h", "--json").json["last_id"] == dead
    assert desk.run("dead", "replay", "--task", "refuse", "--yes").out == "1 dead letter replayed.\n"
    assert desk.run("jobs", "cancel", dead).code == 0
    assert desk.run("jobs", "show", dead, "--json").json["generation"] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--tasks", "nowhere"], "No module named 'nowhere'"),
        (["--workers", "0"], "--workers"),
        (["--drain", "soon"], "--drain"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_worker_that_cannot_start_says_why(words: list[str], says: str, desk: Desk) -> None:
    answer = end(desk.start("work", *words))
    assert (answer.code, answer.out) == (2, "")
    assert says in answer.err


def test_the_help_says_how_long_a_stop_takes(desk: Desk) -> None:
    """Who writes a unit file needs the number, and must not have to read the code for it."""
    told = " ".join(desk.run("work", "--help").out.split())
    longest_s = 2 * STOP_GRACE_S + LEFTOVERS_S
    assert f"A stop takes --drain seconds at most, and up to {longest_s:.0f} more" in told
    assert "[default: 30.0]" in told


def test_tracing_without_its_extra_is_told_and_ends_with_2(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    monkeypatch.setenv("HEADGATE__TRACING", "true")

    answer = desk.run("work", "--burst")

    assert answer.code == 2
    assert "pip install '.[tracing]'" in answer.err
