"""`headgate newsletter` as people and cron type it."""

import json
from pathlib import Path

import pytest
from apps.newsletter.judge_server import judging
from apps.newsletter.mail_server import MailServer, mail_server
from apps.newsletter.newsletter_process import finish, settings, start
from cli.command_stage import Desk

from headgate.apps.newsletter.alone import alone


def test_it_runs_out_of_the_box_and_its_history_tells(tmp_path: Path) -> None:
    """No settings, no key, no network: the samples that ship, judged by the simulation."""
    code, out, _ = finish(start("run", "--run-id", "first", cwd=tmp_path))
    assert code == 0
    assert "run first: delivered" in out
    assert "cost: " in out
    text = (tmp_path / "newsletter" / "first.txt").read_text()
    assert "Act now" in text
    assert "discount" not in text
    assert text.count("https://operations.example/2026/retry-storm") == 1
    code, out, _ = finish(start("history", "--json", cwd=tmp_path))
    listed = json.loads(out)
    [run] = listed["data"]
    assert (listed["has_more"], listed["last_id"]) == (False, "first")
    assert (code, run["run_id"], run["state"], run["ok"]) == (0, "first", "delivered", 8)
    assert "first" in finish(start("history", cwd=tmp_path))[1]


def test_a_dry_run_prints_the_mail_and_the_run_stays_open(desk: Desk) -> None:
    dry = desk.run("newsletter", "run", "--run-id", "dry", "--dry-run")
    assert dry.code == 0
    assert "Worth thinking about" in dry.out
    assert "0 mailed" in dry.err
    assert not (desk.folder / "newsletter").exists()
    resumed = desk.run("newsletter", "run", "--resume")
    assert (resumed.code, "run dry: delivered" in resumed.out) == (0, True)
    nothing = desk.run("newsletter", "run", "--resume")
    assert (nothing.code, "no run waits to go on" in nothing.err) == (2, True)


def test_a_wrong_model_ends_with_3_after_a_few_calls_and_names_upstream_status_and_setting(
    desk: Desk,
) -> None:
    with judging(status=404) as server:
        config = settings(desk.folder, server.base_url, items=120)
        told = desk.run("newsletter", "run", "--config", str(config), "--run-id", "w")
        assert server.calls < 20, "of 120 items"
    assert (told.code, told.out) == (3, "")
    assert "openai/judge-1 answered misconfigured 404 model_not_found" in told.err
    assert "models.judge.upstreams" in told.err
    assert "--run-id w" in told.err
    assert not (desk.folder / "out").exists()


def test_a_mail_that_was_not_taken_is_delivered_later_without_judging_anew(desk: Desk) -> None:
    """Verdicts are paid for; the mail server's bad hour is no reason to pay again."""
    mail = ", mail_from: a@example.org, mail_to: [b@example.org], smtp_host: 127.0.0.1, smtp_tls: none"
    house = MailServer(greeting=b"421 back soon")
    with judging() as judge, mail_server(house):
        config = settings(desk.folder, judge.base_url, items=4, more=f"{mail}, smtp_port: {house.port}")
        words = ("newsletter", "run", "--config", str(config), "--run-id", "w")
        kept = desk.run(*words)
        assert (kept.code, kept.out, house.received) == (3, "", [])
        assert "cannot be reached: 421 back soon" in kept.err
        assert str(desk.folder / "out" / "w.eml") in kept.err.replace("\n", "")
        assert "--run-id w" in kept.err
        house.greeting = b"220 here"
        sent = desk.run(*words)
        assert (sent.code, "3 mailed" in sent.out, judge.calls) == (0, True, 4)
    assert house.received == [(desk.folder / "out" / "w.eml").read_bytes()]


def test_a_second_run_at_the_same_time_is_told_to_wait_and_pays_nothing(desk: Desk) -> None:
    """Cron and a person at once: everybody would have got the mail twice."""
    with judging() as judge:
        config = settings(desk.folder, judge.base_url, items=4)
        words = ("newsletter", "run", "--config", str(config), "--run-id", "b")
        with alone(desk.folder / "data"):
            second = desk.run(*words)
        assert (second.code, judge.calls) == (3, 0)
        assert "another run of the newsletter is at work" in second.err
        later = desk.run(*words)
        assert (later.code, "run b: delivered" in later.out) == (0, True)


def test_mistakes_of_the_user_end_with_2_and_a_sentence(desk: Desk) -> None:
    desk.submit("echo", 1)
    (desk.folder / "profile.yaml").write_text("interests: {highest: [x]}")
    (desk.folder / "nowhere.yaml").write_text("data_dir: /dev/null")
    cases = (
        (("--config", "nowhere.yaml"), "cannot be written: File exists; check data_dir"),
        (("--profile", "profile.yaml"), "under max, high, medium, low and ignore"),
        (("--feeds", "nowhere.opml"), "nowhere.opml"),
        (("--run-id", "../x"), "a run's id"),
        (("--run-id", ""), "a run's id"),
        (("--run-id", "never", "--resume"), "no run 'never'"),
    )
    for words, said in cases:
        told = desk.run("newsletter", "run", *words)
        assert (told.code, said in told.err) == (2, True)


def test_a_wrong_variable_is_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEDROCK_MAX_PARALLEL", "many")
    told = desk.run("newsletter", "run")
    assert (told.code, "BEDROCK_MAX_PARALLEL" in told.err) == (2, True)
