"""A worker is killed, stopped, paused: its jobs are finished by the next one, and whatever it still says is refused."""

import signal
from collections.abc import Iterable
from typing import Any

import pytest
from conftest import Figure
from crash import audit
from crash.harness import ROUNDS, Child, Family, Site, until
from crash.tasks import EFFECTS

from headgate.core.job import Job, JobState
from headgate.core.job_rules import JobRules

IN_FLIGHT = 50
DEFAULT_LEASE_S = JobRules().lease_s
SHORT_LEASE_S = 1.0
AT_ONCE_S = 2.0
"""From the kill to the last of fifty jobs running again, the start of the next process included."""


def _running(family: Family, site: Site, jobs: int, run_s: float, **rules: Any) -> tuple[list[str], Child]:
    """So many jobs in flight, and the worker that has them all."""
    ids = audit.submit(site, [{"run_s": run_s}] * jobs)
    worker = family.worker(**rules)
    until("all run", lambda: len(site.lines(EFFECTS)) == jobs, worker)
    return ids, worker


def _ran_by(site: Site, jobs: Iterable[Job]) -> set[int]:
    """The processes whose runs are recorded."""
    pids = {line["run"]: line["pid"] for line in site.lines(EFFECTS)}
    return {pids[job.result["run"]] for job in jobs}


def test_fifty_jobs_of_a_killed_worker_run_again_at_once_on_the_same_machine(
    family: Family, site: Site, figure: Figure
) -> None:
    """With the default lease of 30 s: the dead worker's file lock is free, so nobody waits for its lease."""
    _, dead = _running(family, site, IN_FLIGHT, 2.0)
    killed = [(dead.pid, dead.kill())]
    family.worker()
    audit.wait_for_all(site, within_s=DEFAULT_LEASE_S)

    books = audit.open_books(site)
    audit.check_effects(site, books)
    assert [job.state for job in books.jobs.values()] == [JobState.COMPLETED] * IN_FLIGHT
    delays = audit.reruns(site, books, killed)
    assert len(delays) == IN_FLIGHT
    assert max(delays) < AT_ONCE_S
    figure(
        f"{site.kind}: {IN_FLIGHT} jobs of a killed worker run again",
        f"after {min(delays):.2f}–{max(delays):.2f} s on the same machine (lease {DEFAULT_LEASE_S:g} s)",
    )


@pytest.mark.timeout(3600)
def test_fifty_jobs_of_a_killed_worker_run_again_within_two_leases_and_five_seconds(
    family: Family, site: Site, figure: Figure
) -> None:
    """As on another machine, which cannot see the dead worker's lock: it must be silent for a lease first."""
    lease_s = DEFAULT_LEASE_S if ROUNDS else SHORT_LEASE_S
    _, dead = _running(family, site, IN_FLIGHT, 2.0, lease_s=lease_s)
    killed = [(dead.pid, dead.kill())]
    for lock in site.locks:
        lock.unlink()
    family.worker(lease_s=lease_s)
    audit.wait_for_all(site, within_s=2 * lease_s + 5 + 2.0 + 5)

    books = audit.open_books(site)
    audit.check_effects(site, books)
    assert [job.state for job in books.jobs.values()] == [JobState.COMPLETED] * IN_FLIGHT
    delays = audit.reruns(site, books, killed)
    assert len(delays) == IN_FLIGHT
    assert max(delays) < 2 * lease_s + 5
    figure(
        f"{site.kind}: the same as from another machine",
        f"after {min(delays):.2f}–{max(delays):.2f} s (bound: two leases + 5 s = {2 * lease_s + 5:g} s)",
    )


def test_a_worker_that_was_paused_past_its_lease_writes_nothing_and_goes_on_as_a_new_node(
    family: Family, site: Site, figure: Figure
) -> None:
    """It wakes up with finished jobs in hand that are another's by now. Every one of its writes is refused."""
    jobs = 20
    _, paused = _running(family, site, jobs, 1.5, lease_s=SHORT_LEASE_S)
    family.freeze(paused)
    second = family.worker(lease_s=SHORT_LEASE_S, pace=0.1)
    audit.wait_for_all(site, within_s=2 * SHORT_LEASE_S + 5)
    finished = audit.open_books(site)
    second.send(signal.SIGTERM)
    assert second.wait() == 0
    paused.send(signal.SIGCONT)
    until("it hears that it was dead", lambda: "was declared dead" in site.log_of(paused), paused)
    (later,) = audit.submit(site, [{"run_s": 0.0}])
    audit.wait_for_all(site, within_s=SHORT_LEASE_S + 5)

    books = audit.open_books(site)
    audit.check_effects(site, books)
    assert _ran_by(site, [books.jobs.pop(later)]) == {paused.pid}, "it does not go on"
    stale = sum(_story(job) != _story(finished.jobs[job_id]) for job_id, job in books.jobs.items())
    assert stale == 0
    assert _ran_by(site, books.jobs.values()) == {second.pid}
    assert {(job.crashes, job.deferrals) for job in books.jobs.values()} == {(0, 1)}, "silence is no proof"
    figure(f"{site.kind}: paused past its lease, {jobs} jobs in hand", f"stale writes accepted: {stale}")


def test_a_worker_that_is_told_to_stop_gives_its_jobs_back_uncounted(family: Family, site: Site) -> None:
    """A deploy is nobody's failure: no attempt is lost, and the next worker finishes what this one began."""
    jobs = 20
    _, first = _running(family, site, jobs, 60.0)
    first.send(signal.SIGTERM)
    assert first.wait(within_s=10) == 0, site.log_of(first)
    given_back = audit.open_books(site).jobs.values()
    assert {(job.state, job.attempts, job.deferrals) for job in given_back} == {(JobState.PENDING, 0, 1)}
    assert not site.locks

    second = family.worker(pace=0.0)
    audit.wait_for_all(site, within_s=10)
    books = audit.open_books(site)
    audit.check_effects(site, books)
    ends = {(job.state, job.attempts, job.deferrals, job.crashes) for job in books.jobs.values()}
    assert ends == {(JobState.COMPLETED, 1, 1, 0)}
    assert _ran_by(site, books.jobs.values()) == {second.pid}


def _story(job: Job) -> tuple[object, ...]:
    """All that is written of it but the times: two readers of one database differ by the clocks they compared."""
    told = tuple((entry.outcome, entry.attempt, entry.message) for entry in job.history)
    return (job.state, job.attempts, job.crashes, job.deferrals, job.result, job.error, told)
