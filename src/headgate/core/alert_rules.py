"""The rules of alerts: when each fires and clears, and what it tells whoever has to look."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headgate.core.alerts import Level, Reading
from headgate.core.idempotency import KeyOutcome
from headgate.core.problems import Review
from headgate.core.webhook import url_mistake

RATES_S: Final = 600.0
"""Rates and means are taken over this long …"""
FEWEST_SAMPLES: Final = 20
"""… and not from fewer than this."""
HOUR_S: Final = 3600.0
BREAKER_OPEN_S: Final = 300.0
STORE_DOWN_S: Final = 10.0
"""A database that only restarts wakes nobody."""
LEAST_FREE_GB: Final = 1.0
ROOM_AGAIN_GB: Final = 0.2
FAILED_RUNS: Final = 1
"""One failed run is bad luck, the next is an alert."""
CALM_SHARE: Final = 0.5
CALM_S: Final = 300.0
WELL_S: Final = 60.0
REPEATS: Final = frozenset(
    {KeyOutcome.REPLAYED, KeyOutcome.SHARED, KeyOutcome.IN_PROGRESS, KeyOutcome.MISMATCH}
)
"""What comes of a request whose key was there already."""


class Rule(enum.StrEnum):
    DEAD_LETTERS = "dead_letters"
    RETRY_FAILURES = "retry_failures"
    DUPLICATE_KEYS = "duplicate_keys"
    JOB_DELAY = "job_delay"
    UPSTREAM_MISCONFIGURED = "upstream_misconfigured"
    BREAKER_OPEN = "breaker_open"
    STORE_DOWN = "store_down"
    DISK_FULL = "disk_full"
    RUNS_FAILING = "runs_failing"
    REJECTIONS = "rejections"
    ERRORS = "errors"
    SERVER_ERRORS = "server_errors"
    LATENCY = "latency"
    LOOP_LAG = "loop_lag"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRules:
    """What an operator can decide about alerts. The address may hold a token, so it never prints."""

    dead_letters_per_hour: float = 10
    retry_failure_rate: float = 0.05
    duplicate_key_rate: float = 0.5
    job_delay_s: float = 300
    rejected_rate: float = 0.1
    error_rate: float = 0.05
    server_error_rate: float = 0.01
    latency_p99_s: float | None = None
    """None: latency is not watched; what is slow depends on the models."""
    loop_lag_s: float = 0.5
    webhook: str | None = field(default=None, repr=False)
    """Where alerts go instead of to `webhooks.url`."""

    def __post_init__(self) -> None:
        review = Review()
        review.number("dead_letters_per_hour", self.dead_letters_per_hour)
        review.number("retry_failure_rate", self.retry_failure_rate, most=1)
        review.number("duplicate_key_rate", self.duplicate_key_rate, most=1)
        review.number("job_delay_s", self.job_delay_s, above=0)
        review.number("rejected_rate", self.rejected_rate, most=1)
        review.number("error_rate", self.error_rate, most=1)
        review.number("server_error_rate", self.server_error_rate, most=1)
        review.number("latency_p99_s", self.latency_p99_s, above=0)
        review.number("loop_lag_s", self.loop_lag_s, above=0)
        if self.webhook is not None and (mistake := url_mistake(self.webhook)):
            review.add("webhook", mistake)
        review.refuse()

    def levels(self) -> Mapping[str, Level]:
        return {
            Rule.DEAD_LETTERS: _counted(self.dead_letters_per_hour),
            Rule.RETRY_FAILURES: _counted(self.retry_failure_rate),
            Rule.DUPLICATE_KEYS: _counted(self.duplicate_key_rate),
            Rule.JOB_DELAY: _counted(self.job_delay_s),
            Rule.UPSTREAM_MISCONFIGURED: Level(0, 0, WELL_S),
            Rule.BREAKER_OPEN: Level(BREAKER_OPEN_S, 0, WELL_S),
            Rule.STORE_DOWN: Level(STORE_DOWN_S, 0, WELL_S),
            Rule.DISK_FULL: Level(0, -ROOM_AGAIN_GB, WELL_S),
            Rule.RUNS_FAILING: Level(FAILED_RUNS, 0, 0),
            Rule.REJECTIONS: _counted(self.rejected_rate),
            Rule.ERRORS: _counted(self.error_rate),
            Rule.SERVER_ERRORS: _counted(self.server_error_rate),
            Rule.LATENCY: _counted(math.inf if self.latency_p99_s is None else self.latency_p99_s),
            Rule.LOOP_LAG: _counted(self.loop_lag_s),
        }


def _counted(threshold: float) -> Level:
    return Level(threshold, threshold * CALM_SHARE, CALM_S)


_WORDS: Final[Mapping[str, str]] = {
    Rule.DEAD_LETTERS: (
        "{value:,.0f} jobs became dead letters within an hour, more than {threshold:g}. See why with"
        " `headgate dead list`; when the cause is mended, `headgate dead replay` sends them back."
    ),
    Rule.RETRY_FAILURES: (
        "{value:.0%} of what was retried in the last 10 minutes failed all the same, more than {threshold:.0%}."
        " See which upstream with `headgate models list` and `headgate requests list --status failed`."
    ),
    Rule.DUPLICATE_KEYS: (
        "{value:.0%} of the idempotency keys of the last 10 minutes were there already, more than"
        " {threshold:.0%}: some client sends again and again. Look for one without pauses between its tries."
    ),
    Rule.JOB_DELAY: (
        "Jobs are done {value:.0f} s after they are due, more than {threshold:.0f} s. See what waits with"
        " `headgate jobs list --state pending`, and whether their model takes calls with `headgate models list`."
    ),
    Rule.UPSTREAM_MISCONFIGURED: (
        "{subject} rejects our calls: its key, model name or permissions are wrong. Fix the settings, check them with"
        " `headgate doctor`, then send SIGHUP, which lifts the hold. Its jobs wait until then."
    ),
    Rule.BREAKER_OPEN: (
        "{subject} has failed for {value:.0f} s and is left alone but for a probe now and then. Look at the"
        " provider; `headgate requests list --status failed` shows what it answers."
    ),
    Rule.STORE_DOWN: (
        "The database has not worked for {value:.0f} s: jobs and idempotency keys are refused, direct calls go"
        " on. `headgate doctor` says what is wrong with it."
    ),
    Rule.DISK_FULL: (
        "Less than {least:g} GB, or than `limits.min_free_bytes`, is free where the data is. Make room: below that limit"
        " new jobs, files, batches and idempotency keys are refused. `headgate doctor` says how much is left."
    ),
    Rule.RUNS_FAILING: (
        "The last {value:.0f} runs of {subject} failed. `headgate newsletter history` says why;"
        " `headgate newsletter run --resume` goes on with the last."
    ),
    Rule.REJECTIONS: (
        "{value:.0%} of the requests of the last 10 minutes were rejected with 429 or 503, more than"
        " {threshold:.0%}. `headgate models list` shows which queues are full, paused or throttled, and"
        " `headgate requests list --status refused` the rejected calls. Limits of keys and a full backlog of jobs are not"
        " in that list: the events `HttpAnswered` of `GET /events` name them."
    ),
    Rule.ERRORS: (
        "{value:.1%} of the requests of the last 10 minutes failed, more than {threshold:.1%}."
        " `headgate requests list --status failed` shows what upstreams answered to calls of models. Failures of"
        " other requests are not in that list: the events `HttpAnswered` of `GET /events` name them."
    ),
    Rule.SERVER_ERRORS: (
        "{value:.1%} of the requests of the last 10 minutes failed with an unexpected exception, more than"
        " {threshold:.1%}. Look for 'broke' in the gateway's log: it names the line. Please report it."
    ),
    Rule.LATENCY: (
        "1 of 100 answers of the last 10 minutes took {value:.1f} s or longer, more than {threshold:g} s."
        " `headgate requests list --status ok` shows how long each took, `headgate models list` what waits."
    ),
    Rule.LOOP_LAG: (
        "The event loop was blocked for {value:.1f} s within the last minute, more than {threshold:g} s: nothing else"
        " ran meanwhile. If a job's task blocked it, the log names the code. Otherwise give the process more CPU."
    ),
}


def words(reading: Reading, threshold: float) -> str:
    """The rule as a sentence, with what to do next."""
    return _WORDS[reading.rule].format(
        value=reading.value, threshold=threshold, subject=reading.subject, least=LEAST_FREE_GB
    )
