"""Jobs and idempotency keys in the settings: every key, its own defaults, and every mistake at its place."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from settings.settings_stage import PROVIDERS, loaded, mistakes_in

from headgate.core.idempotency import IdempotencyRules, Unknown
from headgate.core.job_rules import JobRules
from headgate.core.retry import Jitter, RetryPolicy
from headgate.settings import Settings, load

RETRY_KEYS = "count_throttles, factor, first_wait_s, jitter, jitter_s, jitter_share, longest_wait_s, max_attempts, max_retries"
IMPORT_PATH = "must be the import path of a module, such as news.tasks or news.tasks:app"

FULL = """
jobs:
  workers: 8
  lease_s: 15
  timeout_s: 60.5
  expires_after_s: 3600
  revive_after_s: 60
  retention_days: 0.5
  max_pending: 1000
  max_pending_per_tenant: 100
  retry: {max_attempts: 2, first_wait_s: 1, factor: 3, longest_wait_s: 10, jitter: symmetric, jitter_share: 0.1, jitter_s: 0.2}
  tasks: [news, news.tasks, "news.digest:app"]
idempotency: {retention_h: 24, mismatch_status: 422, unknown: refuse}
"""


def patient(**changes: Any) -> RetryPolicy:
    """The policy of jobs, with these changes."""
    return dataclasses.replace(JobRules().retry, **changes)


def test_every_key_reaches_its_record() -> None:
    settings = loaded(FULL)

    assert settings.jobs == JobRules(
        workers=8,
        lease_s=15,
        timeout_s=60.5,
        expires_after_s=3600,
        revive_after_s=60,
        retention_days=0.5,
        max_pending=1000,
        max_pending_per_tenant=100,
        retry=RetryPolicy(
            max_attempts=2,
            first_wait_s=1,
            factor=3,
            longest_wait_s=10,
            jitter=Jitter.SYMMETRIC,
            jitter_share=0.1,
            jitter_s=0.2,
        ),
        tasks=("news", "news.tasks", "news.digest:app"),
    )
    assert settings.idempotency == IdempotencyRules(
        retention_h=24, mismatch_status=422, unknown=Unknown.REFUSE
    )


@pytest.mark.parametrize(
    "text",
    [
        "jobs:",
        "jobs: {}",
        "jobs: {retry: }",
        "jobs: {tasks: }",
        "jobs: {tasks: []}",
        "idempotency:",
        "idempotency: {}",
    ],
)
def test_an_empty_section_means_its_defaults(text: str) -> None:
    assert loaded(text) == Settings()


@pytest.mark.parametrize(
    ("keys", "policy"),
    [
        ("", patient()),
        ("factor: 3", patient(factor=3)),
        ("max_attempts: 2", patient(max_attempts=2)),
        ("max_retries: 0", patient(max_attempts=1)),
        ("max_retries: 99, jitter: none", patient(max_attempts=100, jitter=Jitter.NONE)),
        ("longest_wait_s: 20", patient(longest_wait_s=20)),
    ],
)
def test_a_part_of_the_retry_keeps_the_patience_of_jobs(keys: str, policy: RetryPolicy) -> None:
    """Naming one key must not turn the other waits from minutes into the seconds of a direct call."""
    settings = loaded(f"jobs: {{retry: {{{keys}}}}}")

    assert settings.jobs.retry == policy
    assert settings.jobs.retry.first_wait_s == 5
    assert settings.models["simulated"].retry == RetryPolicy.sdk()


def test_overrides_reach_into_sections_that_the_file_does_not_have() -> None:
    env = {
        "HEADGATE__JOBS__WORKERS": "8",
        "HEADGATE__JOBS__RETRY__MAX_ATTEMPTS": "2",
        "HEADGATE__JOBS__TASKS": "[news.tasks, news.digest:app]",
        "HEADGATE__IDEMPOTENCY__UNKNOWN": "refuse",
        "HEADGATE__IDEMPOTENCY__MISMATCH_STATUS": "422",
    }
    settings = loaded("", env)

    assert settings.jobs == JobRules(
        workers=8, retry=patient(max_attempts=2), tasks=("news.tasks", "news.digest:app")
    )
    assert settings.idempotency == IdempotencyRules(unknown=Unknown.REFUSE, mismatch_status=422)


def test_overrides_go_over_the_file_and_leave_the_rest() -> None:
    env = {
        "HEADGATE__JOBS__LEASE_S": "20",
        "HEADGATE__JOBS__RETRY__FACTOR": "1.5",
        "HEADGATE__JOBS__TASKS__1": "news.other",
    }
    before, after = loaded(FULL).jobs, loaded(FULL, env).jobs

    assert after == dataclasses.replace(
        before,
        lease_s=20,
        retry=dataclasses.replace(before.retry, factor=1.5),
        tasks=("news", "news.other", "news.digest:app"),
    )


def test_variables_are_read_as_what_is_due() -> None:
    text = """
    jobs: {workers: "${N}", retry: {max_retries: "${N}", jitter: "${J}"}, tasks: ["${APP}.tasks"]}
    idempotency: {mismatch_status: "${S}", unknown: "${U}"}
    """
    env = {"N": "3", "J": "none", "APP": "news", "S": "422", "U": "refuse"}
    settings = loaded(text, env)

    assert settings.jobs == JobRules(
        workers=3, retry=patient(max_attempts=4, jitter=Jitter.NONE), tasks=("news.tasks",)
    )
    assert type(settings.jobs.tasks[0]) is str
    assert settings.idempotency == IdempotencyRules(unknown=Unknown.REFUSE, mismatch_status=422)


def test_a_mapping_may_hold_the_enums_and_a_tuple() -> None:
    mapping = {"jobs": {"tasks": ("news.tasks",)}, "idempotency": {"unknown": Unknown.REFUSE}}
    settings = load(mapping, env={}, providers=PROVIDERS)

    assert settings.jobs.tasks == ("news.tasks",)
    assert settings.idempotency.unknown is Unknown.REFUSE


def test_all_mistakes_are_reported_together_at_their_places() -> None:
    text = """
    database: mysql://db
    jobs:
      workers: 0
      lease_s: 0.5
      timeout_s: "60"
      expires_after_s: .inf
      revive_after_s: -1
      retention_days: yes
      max_pending: 1.5
      max_pending_per_tenant: null
      worker: 5
      retry: {max_attempts: 0, max_retries: 100, jitter: fulll, wait_s: 2}
      tasks: [news.tasks, news/tasks.py, 5, null, [a]]
    idempotency:
      retention_h: 0
      mismatch_status: 400
      unknown: rerum
      retention: 5
    job: {}
    """
    known_jobs = (
        "expires_after_s, lease_s, max_pending, max_pending_per_tenant, retention_days, retry, "
        "revive_after_s, tasks, timeout_s, workers"
    )
    assert mistakes_in(text) == [
        "database: must be sqlite or a URL postgresql://…, not mysql://…",
        "jobs.workers: must be at least 1, not 0",
        "jobs.lease_s: must be at least 1, not 0.5",
        "jobs.timeout_s: must be a number, not '60'",
        "jobs.expires_after_s: must be a finite number, not inf",
        "jobs.revive_after_s: must be more than 0, not -1",
        "jobs.retention_days: must be a number, not true",
        "jobs.max_pending: must be a whole number, not 1.5",
        "jobs.max_pending_per_tenant: must be a whole number, not null",
        f"jobs.worker: is no setting; did you mean 'workers'? known: {known_jobs}",
        "jobs.retry.max_attempts: must be at least 1, not 0",
        "jobs.retry.max_retries: says the same as max_attempts: give only one of them",
        "jobs.retry.max_retries: must be at most 99, not 100",
        "jobs.retry.jitter: must be one of none, full, equal, additive, symmetric, not 'fulll'; did you mean 'full'?",
        f"jobs.retry.wait_s: is no setting; did you mean 'first_wait_s'? known: {RETRY_KEYS}",
        f"jobs.tasks[1]: {IMPORT_PATH}, not 'news/tasks.py'",
        f"jobs.tasks[2]: {IMPORT_PATH}, not 5",
        f"jobs.tasks[3]: {IMPORT_PATH}, not null",
        f"jobs.tasks[4]: {IMPORT_PATH}, not a list",
        "idempotency.retention_h: must be more than 0, not 0",
        "idempotency.mismatch_status: must be 409 or 422, not 400",
        "idempotency.unknown: must be one of rerun, refuse, not 'rerum'; did you mean 'rerun'?",
        "idempotency.retention: is no setting; did you mean 'retention_h'? known: mismatch_status, retention_h, unknown",
        "job: is no setting; did you mean 'jobs'? known: alerts, apps, data_dir, database, idempotency, jobs, limits, listen, logs_dir, models, secret_key, tracing, webhooks",
    ]


def single_keys() -> Iterator[tuple[str, str]]:
    """Every key that takes one value: how it is written in a file, and its path."""
    for name in (
        field.name for field in dataclasses.fields(JobRules) if field.name not in {"retry", "tasks"}
    ):
        yield f"jobs: {{{{{name}: {{0}}}}}}", f"jobs.{name}"
    for name in (*(field.name for field in dataclasses.fields(RetryPolicy)), "max_retries"):
        yield f"jobs: {{{{retry: {{{{{name}: {{0}}}}}}}}}}", f"jobs.retry.{name}"
    for name in (field.name for field in dataclasses.fields(IdempotencyRules)):
        yield f"idempotency: {{{{{name}: {{0}}}}}}", f"idempotency.{name}"


KEYS = list(single_keys())


@pytest.mark.parametrize(
    "value", ["[1]", "{a: 1}", "''", "'words'", ".nan", "-.inf", "-1", "2026-01-31", "null", "true", "'5'"]
)
@pytest.mark.parametrize(("text", "path"), KEYS, ids=[path for _, path in KEYS])
def test_no_key_takes_rubbish(text: str, path: str, value: str) -> None:
    """A record whose review forgot a field would let rubbish through to the running jobs."""
    if path.endswith(".count_throttles") and value == "true":
        return
    (mistake,) = mistakes_in(text.format(value))

    assert mistake.startswith(f"{path}: must ")


def test_a_key_that_nothing_reads_is_refused() -> None:
    """Throttles never cost a job an attempt, so there is nothing to count."""
    (mistake,) = mistakes_in("jobs: {retry: {count_throttles: true}}")

    assert mistake.startswith("jobs.retry.count_throttles: ")


@pytest.mark.parametrize("section", ["jobs", "jobs.retry", "idempotency"])
@pytest.mark.parametrize("value", ["5", "[1]", "words", "true", "bedrock"])
def test_a_section_is_a_mapping(section: str, value: str) -> None:
    """Presets are made for direct calls: a job that gave up after a minute would be a surprise."""
    text = f"jobs: {{retry: {value}}}" if "." in section else f"{section}: {value}"
    (mistake,) = mistakes_in(text)

    assert mistake.startswith(f"{section}: must be a mapping, not a ")


@pytest.mark.parametrize(
    "task",
    ["a", "a.b.c", "_a.b2", "größe.tasks", "a.b:app", "a:_x", "A.B:C"],
)
def test_a_task_is_a_modules_path_and_perhaps_an_attribute(task: str) -> None:
    assert loaded(f"jobs: {{tasks: ['{task}']}}").jobs.tasks == (task,)


@pytest.mark.parametrize(
    "task",
    [
        "",
        " ",
        ".",
        ".tasks",
        "tasks.",
        "a..b",
        "a b",
        " a",
        "a.b ",
        "a-b",
        "1a",
        "a:",
        ":app",
        "a:b:c",
        "a:b.c",
        "a:b()",
        "tasks.py",
        "news/tasks",
        "../tasks",
        "os;import sys",
        "a\\nb",
        "x-" * 5_000,
    ],
)
def test_what_is_no_import_path_is_refused_before_anything_is_imported(task: str) -> None:
    (mistake,) = mistakes_in(f'jobs: {{tasks: ["{task}"]}}')

    assert mistake.startswith(f"jobs.tasks[0]: {IMPORT_PATH}, not '")
    assert mistake.isprintable()
    assert len(mistake) < 200


@pytest.mark.parametrize("value", ["news.tasks", "5", "{a: b}", "true"])
def test_tasks_are_a_list(value: str) -> None:
    (mistake,) = mistakes_in(f"jobs: {{tasks: {value}}}")

    assert mistake.startswith("jobs.tasks: must be a list, not a ")


@pytest.mark.parametrize("status", ["409.0", "4.09e2", "408", "410", "'409'", "999999999999999999999"])
def test_a_status_is_one_of_two_whole_numbers(status: str) -> None:
    """409.0 equals 409, but no HTTP server can send it."""
    (mistake,) = mistakes_in(f"idempotency: {{mismatch_status: {status}}}")

    assert mistake.startswith("idempotency.mismatch_status: must be 409 or 422, not ")


def test_a_mistake_names_the_variable_that_made_it() -> None:
    env = {
        "HEADGATE__JOBS__WORKERS": "0",
        "HEADGATE__JOBS__RETRY__MAX_ATTEMPTS": "0",
        "HEADGATE__JOBS__TASKS": "[a, b/c]",
        "HEADGATE__JOBS__LEASES": "5",
        "HEADGATE__IDEMPOTENCY__UNKNOWN": "maybe",
    }
    blamed = {
        line.split(": ")[0]: line.rpartition(" (set by ")[2].rstrip(")") for line in mistakes_in("", env)
    }

    assert blamed == {
        "jobs.workers": "HEADGATE__JOBS__WORKERS",
        "jobs.retry.max_attempts": "HEADGATE__JOBS__RETRY__MAX_ATTEMPTS",
        "jobs.tasks[1]": "HEADGATE__JOBS__TASKS",
        "jobs.leases": "HEADGATE__JOBS__LEASES",
        "idempotency.unknown": "HEADGATE__IDEMPOTENCY__UNKNOWN",
    }


def test_what_a_variable_has_filled_in_never_prints() -> None:
    text = """
    jobs: {workers: "${V}", retry: {factor: "${V}"}, tasks: ["${V}", "x${V}"]}
    idempotency: {mismatch_status: "${V}", unknown: "${V}"}
    """
    mistakes = mistakes_in(text, {"V": "sk-live-0123456789"})

    assert len(mistakes) == 6
    assert "sk-live" not in str(mistakes)
    assert all(mistake.endswith(", not ***") for mistake in mistakes)
