"""The newsletter in AWS Lambda: it raises when it fails, and tells CloudWatch either way."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.apps.newsletter.aws_lambda import handler
from headgate.apps.newsletter.judging import Aborted


class FakeContext:
    aws_request_id = "request-1"

    def get_remaining_time_in_millis(self) -> int:
        return 900_000


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lambda has it: the code's folder, and one that can be written to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def _metrics(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    [line] = capsys.readouterr().out.splitlines()
    told: dict[str, Any] = json.loads(line)
    [metrics] = told["_aws"]["CloudWatchMetrics"]
    assert {metric["Name"] for metric in metrics["Metrics"]} == {"Calls", "Retries", "Fallbacks"}
    return told


def test_a_run_answers_with_its_counts_and_one_line_of_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = handler({"id": "event-7"}, FakeContext())
    assert (answer["run_id"], answer["collected_count"], answer["judged_count"]) == ("event-7", 9, 8)
    assert answer["notification_sent"] is False, "there is no mail server: the mail is a file in /tmp"
    assert (answer["judges"], answer["simulated_count"]) == (["simulated"], 8)
    assert (tmp_path / "tmp" / "newsletter" / "event-7.html").exists()
    told = _metrics(capsys)
    assert (told["Calls"], told["Retries"], told["Fallbacks"]) == (8, 0, 0)


def test_a_repeated_event_goes_on_with_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Lambda repeats an event that failed."""
    handler({"id": "event-7", "dry_run": True}, FakeContext())
    capsys.readouterr()
    assert handler({"id": "event-7"}, FakeContext())["judged_count"] == 8
    assert _metrics(capsys)["Calls"] == 0


def test_a_failed_run_raises_and_its_metrics_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first newsletter returned a body that said 500: no alarm ever heard of it."""
    (tmp_path / "headgate.yaml").write_text("apps: {newsletter: {model: simulated/misconfigured}}")
    with pytest.raises(Aborted, match="misconfigured 401"):
        handler({}, FakeContext())
    assert _metrics(capsys)["Calls"] >= 3


@pytest.mark.parametrize("event", [{"dry_run": "true"}, [], "x"])
def test_an_event_that_cannot_be_meant_is_refused(event: Any) -> None:
    """A dry run in the wrong spelling once was a mail to everybody."""
    with pytest.raises(headgate.InvalidRequest, match="dry_run"):
        handler(event, FakeContext())
