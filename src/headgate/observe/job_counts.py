"""What is counted of idempotency keys, jobs, dead letters and webhooks."""

from collections.abc import Callable, Mapping
from typing import Any

from headgate.core import events
from headgate.core.job import JobState
from headgate.observe.labels import BoundedNames
from headgate.observe.tallies import SLOW_S, Tallies


class JobCounts:
    """Counted where it happens: each node counts its own submissions and attempts."""

    def __init__(self, tallies: Tallies, tasks: BoundedNames) -> None:
        self._tasks = tasks
        counter = tallies.counter
        self._keys = counter(
            "headgate_idempotency_requests", "Requests with an idempotency key.", "endpoint", "outcome"
        )
        self._accepted = counter("headgate_jobs_accepted", "Jobs submitted.", "task", "created")
        self._settled = counter(
            "headgate_jobs_settled", "Attempts at jobs that are over.", "task", "state", "retried"
        )
        self._wait_s = tallies.histogram(
            "headgate_job_wait_seconds", "From a job's being due to its start.", "task", bounds=SLOW_S
        )
        self._run_s = tallies.histogram(
            "headgate_job_run_seconds", "How long attempts at jobs ran.", "task", bounds=SLOW_S
        )
        self._dead = counter("headgate_jobs_dead", "Jobs that became dead letters.", "task", "reason")
        self._replayed = counter("headgate_replays", "Dead letters that people sent back.")
        self._dead_s = tallies.histogram(
            "headgate_replayed_after_seconds", "Age of dead letters when they were sent back.", bounds=SLOW_S
        )
        self._webhooks = counter("headgate_webhook_deliveries", "Attempts to deliver a webhook.", "outcome")

    def hearers(self) -> Mapping[type, Callable[[Any], None]]:
        return {
            events.KeyUsed: self._key_used,
            events.JobAccepted: self._job_accepted,
            events.JobSettled: self._job_settled,
            events.JobsReplayed: self._jobs_replayed,
            events.WebhookAttempted: self._webhook_attempted,
        }

    def _key_used(self, event: events.KeyUsed) -> None:
        self._keys.add((event.endpoint, event.outcome.value))

    def _job_accepted(self, event: events.JobAccepted) -> None:
        self._accepted.add((self._tasks.of(event.task), _flag(event.created)))

    def _job_settled(self, event: events.JobSettled) -> None:
        task = self._tasks.of(event.task)
        self._settled.add((task, event.state, _flag(event.attempts > 1)))
        self._wait_s.put((task,), event.wait_ms / 1000)
        self._run_s.put((task,), event.run_ms / 1000)
        if event.state == JobState.DEAD_LETTER:
            self._dead.add((task, event.reason or "unknown"))

    def _jobs_replayed(self, event: events.JobsReplayed) -> None:
        # By whom is in the event and in the job's history: everybody who watches the gateway reads this page.
        self._replayed.add((), event.count)
        for waited_s in event.waited_s:
            self._dead_s.put((), waited_s)

    def _webhook_attempted(self, event: events.WebhookAttempted) -> None:
        self._webhooks.add((event.outcome,))


def _flag(value: bool) -> str:
    return "true" if value else "false"
