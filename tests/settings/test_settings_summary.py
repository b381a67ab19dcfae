"""What a start prints: every model's worst case and the settings in force."""

import pytest
from settings.settings_stage import loaded

from headgate.settings.summary import summary


@pytest.mark.parametrize(
    ("upstreams", "attempts", "total_s", "line"),
    [
        (2, 3, "300", "m: worst case: 6 calls, 300 s; 429s not counted"),
        (1, 1, "0.25", "m: worst case: 1 call, 0.25 s; 429s not counted"),
        (3, 5, "90.5", "m: worst case: 15 calls, 90.5 s; 429s not counted"),
        (100, 100, "1234567.5", "m: worst case: 10000 calls, 1234567.5 s; 429s not counted"),
    ],
)
def test_the_worst_case_is_every_attempt_at_every_upstream_until_the_deadline(
    upstreams: int, attempts: int, total_s: str, line: str
) -> None:
    entries = ", ".join(["{provider: cloud}"] * upstreams)
    rules = f"retry: {{max_attempts: {attempts}}}, timeouts: {{total_s: {total_s}}}"

    told = summary(loaded(f"models: {{m: {{upstreams: [{entries}], {rules}}}}}"))

    assert line in told.splitlines()


def test_every_model_is_told_its_worst_case() -> None:
    text = "models: {summary: {upstreams: [{provider: cloud}, {provider: simulated}]}}"

    assert [line for line in summary(loaded(text)).splitlines() if "worst case" in line] == [
        "summary: worst case: 6 calls, 300 s; 429s not counted",
        "simulated: worst case: 3 calls, 300 s; 429s not counted",
        "simulated/*: worst case: 3 calls, 300 s; 429s not counted",
    ]


def test_the_summary_shows_what_is_in_force_and_marks_what_is_unusual() -> None:
    text = """\
        logs_dir: /var/log/headgate
        models:
          simulated:
            upstreams:
              - {provider: cloud, model: small:4b, slots: 2, reserved_slots: 1, depth: 0, base_url: http://hidden}
              - provider: simulated
                interval_s: 0.5
                requests_per_minute: 60
                tokens_per_minute: 1000
                promote_after_s: 60
                preempt: true
                interactive_order: lifo
                adaptive: false
                spill: true
                breaker: false
                retry_budget: 0.5
            retry: {max_retries: 0}
            timeouts: {total_s: 90.5}
            balance: least_busy
            gather: {}
            stream_rescue: true
          simulated/*: {upstreams: [{provider: simulated}], retry: agents}
        """
    limits = (
        "bodies up to 20,971,520 bytes, files up to 209,715,200 bytes, headers within 10 s, bodies within 60 s, 10,000 connections, 268,435,456 bytes of waiting bodies, "
        "drained within 30 s"
    )
    usual = "timeouts: connect 5 s, first token 60 s, idle 30 s"
    pacing = "every 0.5 s, 60 requests/min, 1000 tokens/min"
    ages = "expired after 259200 s, revived after 3600 s, kept 30 days"
    unusual = (
        "promote_after_s 60, preempt, interactive lifo, not adaptive, spill, no breaker, retry budget 0.5"
    )
    assert summary(loaded(text)).splitlines() == [
        "data in .headgate, logs in /var/log/headgate, database sqlite",
        f"jobs: 64 workers, lease 30 s, timeout 600 s, {ages}, up to 1,000,000 pending, 100,000 per tenant",
        "  5 attempts, 5 s × 2 up to 900 s, jitter full; no tasks",
        "idempotency: keys kept 72 h, mismatch 409, unknown rerun",
        "webhooks: to jobs' own addresses only, answered within 15 s",
        (
            "alerts: above 10 dead letters an hour, 5 % failed retries, 50 % repeated keys, 300 s of delay,"
            " 10 % rejected requests, 5 % failed ones, 1 % internal errors, 0.5 s of loop lag"
        ),
        f"http: listens at 127.0.0.1:8400, {limits}",
        "storage: 10,737,418,240 bytes per tenant, 1,073,741,824 kept free",
        "apps: none",
        "simulated: worst case: 2 calls, 90.5 s; 429s not counted",
        f"  no retries; {usual}, total 90.5 s; balance least_busy; gather 10 within 100 ms; stream rescue",
        "  1. cloud/small:4b: 2 slots, 1 reserved, depth unlimited",
        f"  2. simulated: 8 slots, 0 reserved, depth 1000, {pacing}, {unusual}",
        "simulated/*: worst case: 4 calls, 300 s",
        f"  4 attempts, 1 s × 2 up to 20 s, jitter symmetric, 429s count; {usual}, total 300 s",
        "  1. simulated: 8 slots, 0 reserved, depth 1000",
    ]


@pytest.mark.parametrize(
    "keys",
    [
        "balance: least_busy",
        "gather: {}",
        "stream_rescue: true",
        "patience_s: 30",
        "wait: false",
        "retry: {count_throttles: true}",
        "retry: {max_attempts: 2}",
        "timeouts: {first_token_s: 5}",
    ],
)
def test_no_choice_about_a_model_is_left_out(keys: str) -> None:
    """Whoever compares two gateways by what they print must see each key in which they differ."""
    text = "models: {{m: {{upstreams: [{{provider: cloud}}]{}}}}}"

    assert summary(loaded(text.format(f", {keys}"))) != summary(loaded(text.format("")))


@pytest.mark.parametrize(
    "key",
    [
        "slots: 3",
        "depth: 3",
        "promote_after_s: 3",
        "hold_wait_s: 3",
        "longest_pause_s: 3",
        "adaptive: false",
        "breaker: false",
        "preempt: true",
        "interactive_order: lifo",
        "interval_s: 3",
        "requests_per_minute: 3",
        "tokens_per_minute: 3",
        "spill: true",
        "retry_budget: 2",
    ],
)
def test_no_choice_about_an_upstream_is_left_out(key: str) -> None:
    text = "models: {{m: {{upstreams: [{{provider: cloud{}}}]}}}}"

    assert summary(loaded(text.format(f", {key}"))) != summary(loaded(text.format("")))


def test_the_summary_tells_database_jobs_keys_and_limits_as_they_are_set() -> None:
    """Large and broken numbers come out as they went in: an operator compares them with the file."""
    text = """\
        database: postgresql://me:hunter2@db:5432/news?sslmode=require
        jobs:
          workers: 1
          lease_s: 1.5
          timeout_s: 0.25
          expires_after_s: 31536000
          revive_after_s: 1234567.5
          retention_days: 0.5
          max_pending: 123456789
          max_pending_per_tenant: 1
          retry: {max_retries: 0}
          tasks: [news.tasks, "news.digest:app"]
        idempotency: {retention_h: 0.5, mismatch_status: 422, unknown: refuse}
        alerts: {dead_letters_per_hour: 0.5, retry_failure_rate: 0.125, duplicate_key_rate: 1, job_delay_s: 7.5,
                 rejected_rate: 0.25, error_rate: 0.075, server_error_rate: 0.005, latency_p99_s: 12.5, loop_lag_s: 0.125,
                 webhook: "https://hooks.example/xoxb"}
        listen: "[::1]:0"
        limits: {body_bytes: 1, file_bytes: 2, header_timeout_s: 0.25, body_timeout_s: 3600, drain_s: 0, connections: 1}
        """
    limits = "bodies up to 1 bytes, files up to 2 bytes, headers within 0.25 s, bodies within 3600 s, 1 connections, 268,435,456 bytes of waiting bodies"
    levels = (
        "above 0.5 dead letters an hour, 12.5 % failed retries, 100 % repeated keys, 7.5 s of delay,"
        " 25 % rejected requests, 7.5 % failed ones, 0.5 % internal errors, 12.5 s until 99 of 100 are answered,"
        " 0.125 s of loop lag"
    )
    ages = "expired after 31536000 s, revived after 1234567.5 s, kept 0.5 days"
    assert summary(loaded(text)).splitlines()[:7] == [
        "data in .headgate, logs in .headgate/logs, database postgresql://me@db:5432/news",
        f"jobs: 1 worker, lease 1.5 s, timeout 0.25 s, {ages}, up to 123,456,789 pending, 1 per tenant",
        "  no retries; tasks from news.tasks, news.digest:app",
        "idempotency: keys kept 0.5 h, mismatch 422, unknown refuse",
        "webhooks: to jobs' own addresses only, answered within 15 s",
        f"alerts: {levels}, told to an address of their own",
        f"http: listens at [::1]:0, {limits}, drained within 0 s",
    ]
