"""A worker falls silent with a transaction open: others get at its jobs all the same."""

import dataclasses
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
    site = site_on("postgres", request, tmp_path)
    if getattr(request, "param", "direct") == "direct":
        return site
    return dataclasses.replace(site, database=request.getfixturevalue("pooler").url)


@pytest.mark.parametrize(
    ("site", "lone"),
    [("direct", False), ("behind PgBouncer", False), ("behind PgBouncer", True)],
    indirect=["site"],
)
def test_a_worker_that_falls_silent_amid_a_transaction_does_not_keep_its_jobs(
    family: Family, site: Site, figure: Figure, lone: bool
) -> None:
    """A machine that loses its network says nothing more; the database still holds its row locks for it.

    Behind a pooler a single statement is a transaction too.
    """
    lease_s = 2.0
    jobs = audit.submit(site, [{}] * 5)
    silent = family.start("holder", settings=site.settings(lease_s=lease_s), lone=lone)
    until(
        "it holds them all", lambda: [line["claims"] for line in site.lines("silent")] == [len(jobs)], silent
    )
    silent.send(signal.SIGSTOP)
    began = time.monotonic()
    for lock in site.locks:
        lock.unlink()
    family.worker(lease_s=lease_s)
    over_at = audit.wait_for_all(site, within_s=2 * lease_s + 5 + 1)
    what = f"{'statement' if lone else 'transaction'}{' behind PgBouncer' if 'statement' in site.database else ''}"
    figure(f"jobs of a worker that fell silent amid a {what}", f"done after {over_at - began:.1f} s")
