"""`headgate newsletter` as people and cron type it."""

import json
import time
from pathlib import Path

from apps.newsletter.judge_server import judging
from apps.newsletter.mail_server import MailServer, mail_server
from apps.newsletter.newsletter_process import finish, settings, start

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


def test_a_dry_run_prints_the_mail_and_the_run_stays_open(tmp_path: Path) -> None:
    code, out, err = finish(start("run", "--run-id", "dry", "--dry-run", cwd=tmp_path))
    assert code == 0
    assert "Worth thinking about" in out
    assert "0 mailed" in err
    assert not (tmp_path / "newsletter").exists()
    code, out, _ = finish(start("run", "--resume", cwd=tmp_path))
    assert (code, "run dry: delivered" in out) == (0, True)
    code, _, err = finish(start("run", "--resume", cwd=tmp_path))
    assert (code, "no run waits to go on" in err) == (2, True)


def test_a_wrong_model_ends_with_3_in_seconds_and_names_upstream_status_and_setting(tmp_path: Path) -> None:
    with judging(status=404) as server:
        config = settings(tmp_path, server.base_url, items=120)
        began = time.monotonic()
        code, out, err = finish(start("run", "--config", str(config), "--run-id", "w", cwd=tmp_path))
        assert time.monotonic() - began < 10
    assert (code, out) == (3, "")
    assert "openai/judge-1 answered misconfigured 404 model_not_found" in err
    assert "models.judge.upstreams" in err
    assert "--run-id w" in err
    assert not (tmp_path / "out").exists()


def test_a_mail_that_was_not_taken_is_delivered_later_without_judging_anew(tmp_path: Path) -> None:
    """Verdicts are paid for; the mail server's bad hour is no reason to pay again."""
    mail = ", mail_from: a@example.org, mail_to: [b@example.org], smtp_host: 127.0.0.1, smtp_tls: none"
    house = MailServer(greeting=b"421 back soon")
    with judging() as judge, mail_server(house):
        config = settings(tmp_path, judge.base_url, items=4, more=f"{mail}, smtp_port: {house.port}")
        words = ("run", "--config", str(config), "--run-id", "w")
        code, out, err = finish(start(*words, cwd=tmp_path))
        assert (code, out, house.received) == (3, "", [])
        assert "cannot be reached: 421 back soon" in err
        assert str(tmp_path / "out" / "w.eml") in err.replace("\n", "")
        assert "--run-id w" in err
        house.greeting = b"220 here"
        code, out, _ = finish(start(*words, cwd=tmp_path))
        assert (code, "3 mailed" in out, judge.calls) == (0, True, 4)
    assert house.received == [(tmp_path / "out" / "w.eml").read_bytes()]


def test_a_second_run_at_the_same_time_is_told_to_wait_and_pays_nothing(tmp_path: Path) -> None:
    """Cron and a person at once: everybody would have got the mail twice."""
    with judging() as judge:
        config = settings(tmp_path, judge.base_url, items=4)
        words = ("run", "--config", str(config), "--run-id", "b")
        with alone(tmp_path / "data"):
            code, _, err = finish(start(*words, cwd=tmp_path))
        assert (code, judge.calls) == (3, 0)
        assert "another run of the newsletter is at work" in err
        code, out, _ = finish(start(*words, cwd=tmp_path))
        assert (code, "run b: delivered" in out) == (0, True)


def test_mistakes_of_the_user_end_with_2_and_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "profile.yaml").write_text("interests: {highest: [x]}")
    (tmp_path / "nowhere.yaml").write_text("data_dir: /dev/null")
    cases = (
        (("--config", "nowhere.yaml"), "cannot be written: File exists; check data_dir"),
        (("--profile", "profile.yaml"), "under max, high, medium, low and ignore"),
        (("--feeds", "nowhere.opml"), "nowhere.opml"),
        (("--run-id", "../x"), "a run's id"),
        (("--run-id", ""), "a run's id"),
        (("--run-id", "never", "--resume"), "no run 'never'"),
    )
    for words, said in cases:
        code, _, err = finish(start("run", *words, cwd=tmp_path))
        assert (code, said in err) == (2, True)


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    code, _, err = finish(start("run", cwd=tmp_path, BEDROCK_MAX_PARALLEL="many"))
    assert (code, "BEDROCK_MAX_PARALLEL" in err) == (2, True)
