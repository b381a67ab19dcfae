"""Who is told what when a job ends: a table of ends and settings, and the messages they bring."""

import json
from typing import Any

import msgspec
import pytest

from headgate.core.job import Ended, JobState, NewJob
from headgate.core.problems import InvalidSettings
from headgate.core.webhook import (
    DELIVERY_EXPIRES_S,
    MOST_RESULT_BYTES,
    TASK,
    TOPICS,
    Message,
    WebhookEvent,
    WebhookRules,
    deliveries,
)
from headgate.core.webhook_wire import SCHEDULE

OWN = "https://own.example/hook"
ALL = "https://all.example/hook"
SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
AT = 1_767_225_600.25


def ended(**facts: Any) -> Ended:
    usual: dict[str, Any] = {
        "id": "job_019b0000abcd",
        "task": "summarise",
        "tenant": "acme",
        "model": "summary",
        "state": JobState.COMPLETED,
        "reason": None,
        "error": None,
        "error_class": None,
        "attempts": 1,
        "generation": 1,
        "revivals": 0,
        "result": b'{"text":"short"}',
        "webhook": OWN,
        "metadata": b'{"order":7}',
        "batch_id": None,
        "finished_at": AT,
    }
    return Ended(**{**usual, **facts})


def read(job: NewJob) -> Message:
    return msgspec.json.decode(job.input, type=Message)


def payload(job: NewJob) -> Any:
    return json.loads(bytes(read(job).payload))


@pytest.mark.parametrize(
    ("state", "own", "url", "events", "told"),
    [
        (JobState.COMPLETED, OWN, None, TOPICS, [OWN]),
        (JobState.COMPLETED, None, ALL, TOPICS, [None]),
        (JobState.COMPLETED, OWN, ALL, TOPICS, [None, OWN]),
        (JobState.COMPLETED, OWN, ALL, ("dead_letter",), [OWN]),
        (JobState.DEAD_LETTER, OWN, ALL, ("dead_letter",), [None, OWN]),
        (JobState.COMPLETED, None, ALL, ("dead_letter", "alert"), []),
        (JobState.COMPLETED, None, None, TOPICS, []),
        (JobState.COMPLETED, ALL, ALL, TOPICS, [None]),
        (JobState.COMPLETED, ALL, ALL, ("alert",), [ALL]),
        (JobState.SKIPPED, OWN, ALL, TOPICS, []),
        (JobState.CANCELLED, OWN, ALL, TOPICS, []),
    ],
)
def test_who_is_told_of_an_end(
    state: JobState, own: str | None, url: str | None, events: tuple[str, ...], told: list[str | None]
) -> None:
    """The settings' address is never written down: tenants see the jobs that deliver to it."""
    rules = WebhookRules(url=url, events=events)
    assert [read(job).url for job in deliveries(ended(state=state, webhook=own), rules)] == told


def test_a_message_tells_all_about_a_completed_job() -> None:
    (job,) = deliveries(ended(), WebhookRules())
    assert payload(job) == {
        "type": "job.completed",
        "timestamp": "2026-01-01T00:00:00.250000Z",
        "data": {
            "id": "job_019b0000abcd",
            "task": "summarise",
            "tenant": "acme",
            "state": "completed",
            "model": "summary",
            "attempts": 1,
            "reason": None,
            "error": None,
            "error_class": None,
            "metadata": {"order": 7},
            "finished_at": "2026-01-01T00:00:00.250000Z",
            "result": {"text": "short"},
        },
    }


def test_a_message_tells_why_a_job_is_a_dead_letter() -> None:
    end = ended(
        state=JobState.DEAD_LETTER, reason="exhausted", error="transient 503", error_class="transient",
        result=None, metadata=None, model="", attempts=5,
    )  # fmt: skip
    told = payload(deliveries(end, WebhookRules())[0])
    assert told["type"] == WebhookEvent.JOB_DEAD_LETTER
    assert {name: told["data"][name] for name in ("reason", "error", "error_class", "attempts", "model")} == {
        "reason": "exhausted",
        "error": "transient 503",
        "error_class": "transient",
        "attempts": 5,
        "model": None,
    }
    assert (told["data"]["result"], told["data"]["metadata"]) == (None, None)


@pytest.mark.parametrize(("size", "kept"), [(MOST_RESULT_BYTES, True), (MOST_RESULT_BYTES + 1, False)])
def test_a_large_result_is_left_out_and_the_message_says_so(size: int, kept: bool) -> None:
    """Receivers take small messages; who wants the rest asks for the job."""
    data = payload(deliveries(ended(result=b'"%b"' % (b"x" * (size - 2))), WebhookRules())[0])["data"]
    assert ("result" in data) is kept
    assert data.get("result_omitted", False) is not kept


def test_a_delivery_is_a_job_of_the_same_tenant_with_three_days_of_attempts() -> None:
    (job,) = deliveries(ended(), WebhookRules(timeout_s=5))
    assert (job.task, job.tenant, job.run_at, job.model) == (TASK, "acme", AT, "")
    assert job.max_attempts == 10
    assert not job.revivable, "ten attempts were enough: a revival would be a fourth day"
    assert job.expires_at == AT + DELIVERY_EXPIRES_S
    assert sum(SCHEDULE.waits_s) * 1.1 < DELIVERY_EXPIRES_S
    assert json.loads(job.metadata or b"") == {
        "event": "job.completed",
        "subject": "job_019b0000abcd",
        "webhook_id": "msg_019b0000abcd_1_0",
    }


def test_the_same_end_brings_the_same_jobs_and_another_end_others() -> None:
    """Whoever settles may have to ask twice; receivers tell messages apart by their id alone."""
    rules = WebhookRules(url=ALL)
    first = deliveries(ended(), rules)
    assert first == deliveries(ended(), rules)
    assert len({job.id for job in first}) == 2
    assert {read(job).id for job in first} == {"msg_019b0000abcd_1_0"}
    for other in (ended(generation=2), ended(revivals=1), ended(id="job_019b0000abce")):
        assert {job.id for job in deliveries(other, rules)}.isdisjoint(job.id for job in first)
        assert {read(job).id for job in deliveries(other, rules)} != {"msg_019b0000abcd_1_0"}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"url": "ftp://a.example/"}, "url"),
        ({"url": "a.example"}, "url"),
        ({"url": "https://user:tr1cky@a.example/"}, "url"),
        ({"url": "https://a.example/with space"}, "url"),
        ({"url": "https://a.example/" + "x" * 2048}, "url"),
        ({"events": ("completed", "done")}, "events[1]"),
        ({"secret": "whsec_short"}, "secret"),
        ({"secret": SECRET.removeprefix("whsec_")}, "secret"),
        ({"secret": "whsec_" + "*" * 40}, "secret"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 61}, "timeout_s"),
    ],
)
def test_rules_that_make_no_sense_are_refused(given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        WebhookRules(**given)
    assert [problem.path for problem in caught.value.problems] == [path]
    assert "tr1cky" not in str(caught.value)


def test_the_rules_print_neither_address_nor_secret() -> None:
    """The path of a receiver's URL is often all that guards it."""
    shown = repr(WebhookRules(url="https://a.example/T0/B1/token", secret=SECRET))
    assert "token" not in shown
    assert SECRET not in shown
