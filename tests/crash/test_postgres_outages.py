"""The database dies under everybody: producer and worker come back to it by themselves, and nothing is lost."""

import signal
import time
from pathlib import Path
from typing import Any

import postgres
import pytest
from conftest import Figure
from crash import audit
from crash.conftest import site_on
from crash.harness import Child, Family, Site, until

from headgate.core.job import JobState

LEASE_S = 2.0
DEATHS = 2


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return site_on("postgres", request, tmp_path)


def test_when_postgres_is_killed_and_restarted_everybody_recovers_by_themselves(
    family: Family, site: Site, postgres_server: postgres.Server, figure: Figure
) -> None:
    """SIGKILL on the server, as the kernel does it when memory is short. The processes live on and wait."""
    rules: dict[str, Any] = {"lease_s": LEASE_S, "workers": 8}
    producer = family.start("producer", settings=site.settings(**rules), pause_s=0.01)
    worker = family.worker(**rules)
    waits = []
    for _ in range(DEATHS):
        _until_busy(site, producer, worker, since=time.monotonic())
        postgres_server.kill()
        postgres_server.start()
        back_at = time.monotonic()
        waits.append(_until_busy(site, producer, worker, since=back_at) - back_at)
    producer.kill()
    audit.finish(site, within_s=LEASE_S + 5)
    assert not worker.is_over(), site.log_of(worker)

    books = audit.open_books(site)
    accepted = audit.check_promises(books, (job for line in site.lines("promised") for job in line["ids"]))
    assert {job.state for job in books.jobs.values()} == {JobState.COMPLETED}
    audit.check_effects(site, books)
    figure(
        f"PostgreSQL killed {DEATHS} times under a producer and a worker",
        f"both at work again within {max(waits):.1f} s; {accepted} accepted, 0 missing, 0 doubled",
    )


def test_a_worker_that_falls_silent_amid_a_transaction_does_not_keep_its_jobs(
    family: Family, site: Site, figure: Figure
) -> None:
    """A machine that loses its network says nothing more; the database still holds its row locks for it."""
    lease_s = 2.0
    jobs = audit.submit(site, [{}] * 5)
    silent = family.start("holder", settings=site.settings(lease_s=lease_s))
    until(
        "it holds them all", lambda: [line["claims"] for line in site.lines("silent")] == [len(jobs)], silent
    )
    silent.send(signal.SIGSTOP)
    began = time.monotonic()
    for lock in site.locks:
        lock.unlink()
    family.worker(lease_s=lease_s)
    over_at = audit.wait_for_all(site, within_s=2 * lease_s + 5 + 1)
    figure("jobs of a worker that fell silent amid a transaction", f"done after {over_at - began:.1f} s")


def _until_busy(site: Site, producer: Child, worker: Child, *, since: float) -> float:
    """Both have done something since then."""

    def is_busy() -> bool:
        return all(
            any(line["at"] > since and line["pid"] == child.pid for line in site.lines(name))
            for child, name in ((producer, "promised"), (worker, "effects"))
        )

    return until("both are at work", is_busy, producer, worker, within_s=30)
