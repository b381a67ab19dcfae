"""A worker falls silent with a transaction open: others get at its jobs all the same."""

import signal
import time
from pathlib import Path

import pytest
from conftest import Figure
from crash import audit
from crash.conftest import site_on
from crash.harness import Family, Site, until


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return site_on("postgres", request, tmp_path)


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
