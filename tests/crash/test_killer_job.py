"""One job that kills its worker every time: it is found out and set aside, and nobody else pays for it."""

import signal
from functools import partial

from conftest import Figure
from crash import audit
from crash.harness import PATIENCE_S, Child, Family, Site

from headgate.core.job import JobState, Reason
from headgate.core.job_rules import POISON_AFTER

JOBS = 200
KILLER = 37
"""Its place in line: amid the first that run together."""


def test_a_killer_is_set_aside_after_three_crashes_and_all_others_complete(
    family: Family, site: Site, figure: Figure
) -> None:
    """With the default settings: 64 at a time. Those who ran beside it are suspected twice, then run alone."""
    work = [{"run_s": 0.02, "deadly": number == KILLER} for number in range(JOBS)]
    ids = audit.submit(site, work)
    deaths = _work_to_the_end(family, site)

    books = audit.open_books(site)
    killer = books.jobs.pop(ids[KILLER])
    assert (killer.state, killer.reason) == (JobState.DEAD_LETTER, Reason.POISON)
    assert killer.crashes == deaths == POISON_AFTER
    assert [entry.outcome for entry in killer.history] == ["crashed"] * POISON_AFTER
    assert [job.state for job in books.jobs.values()] == [JobState.COMPLETED] * (JOBS - 1)
    audit.check_effects(site, books)
    suspects = sum(job.crashes == POISON_AFTER - 1 for job in books.jobs.values())
    figure(
        f"{site.kind}: one killer among {JOBS} jobs",
        f"poison after {deaths} crashes, {len(books.jobs)} completed, {suspects} of them after two crashes",
    )


def _work_to_the_end(family: Family, site: Site) -> int:
    """A supervisor: whenever the worker dies, the next one starts. How often it died."""
    for deaths in range(2 * POISON_AFTER):
        worker = family.worker()
        if audit.all_ended(site, unless=partial(Child.is_over, worker), within_s=PATIENCE_S):
            return deaths
        assert worker.wait() == -signal.SIGKILL
    raise AssertionError("the killer was never found out")
