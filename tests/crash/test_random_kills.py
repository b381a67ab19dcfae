"""Kill producers and workers at any moment: what was accepted is done, once, and nothing else is left behind."""

import random
import time
from collections import defaultdict
from typing import Any

import pytest
from conftest import Figure
from crash import audit
from crash.audit import Books
from crash.harness import ROUNDS, SEED, Child, Family, Site, until
from crash.roles import INPUTS, LIST_SIZE

from headgate.core.job import JobState

KILLS = ROUNDS // 2 or 16
"""On each store."""
LEASE_S = 2.0
WORKERS = 2
JOBS: dict[str, Any] = {"lease_s": LEASE_S, "workers": 8}


class Mayhem:
    """One producer and two workers; whoever is killed is started again at once."""

    def __init__(self, family: Family, chance: random.Random) -> None:
        self.killed: list[tuple[int, float]] = []
        self._family = family
        self._chance = chance
        self._alive = [self._start("producer"), *(self._start("worker") for _ in range(WORKERS))]

    def _start(self, role: str) -> Child:
        if role == "worker":
            return self._family.worker(**JOBS)
        return self._family.start("producer", settings=self._family.site.settings(**JOBS), pause_s=0.002)

    def kill_one(self) -> None:
        victim = self._chance.choice(self._alive)
        busy = self._chance.random() < 0.75
        if busy:
            until("it does something", lambda: self._is_busy(victim), victim)
        # The one place that sleeps: the moment must fall anywhere, also amid a start.
        time.sleep(self._chance.random() * (0.3 if busy else 0.1))
        self.killed.append((victim.pid, victim.kill()))
        self._alive[self._alive.index(victim)] = self._start(victim.role)

    def _is_busy(self, child: Child) -> bool:
        name = "effects" if child.role == "worker" else "promised"
        return any(line["pid"] == child.pid for line in self._family.site.lines(name))

    def settle_down(self) -> None:
        """No more jobs; the workers are left alone."""
        producer = self._alive.pop(0)
        until("it is promised something", lambda: self._is_busy(producer), producer)
        producer.kill()


@pytest.mark.timeout(3600)
def test_accepted_means_finished_whatever_is_killed(family: Family, site: Site, figure: Figure) -> None:
    """The promise of the whole thing. The audit counts what is missing, doubled, torn or stuck: all zero."""
    mayhem = Mayhem(family, random.Random(SEED))
    for _ in range(KILLS):
        mayhem.kill_one()
    mayhem.settle_down()
    calm_at = time.monotonic()
    over_at = audit.wait_for_all(site, within_s=LEASE_S + 5 + KILLS / 5)
    poisoned = audit.finish(site, within_s=LEASE_S + 5 + KILLS / 5)
    books = audit.open_books(site, INPUTS)

    accepted = audit.check_promises(books, (job for line in site.lines("promised") for job in line["ids"]))
    assert {job.state for job in books.jobs.values()} == {JobState.COMPLETED}
    audit.check_effects(site, books)
    audit.check_thoughts(site)
    _check_submissions(site, books)
    _check_keys(site, books)
    delays = audit.reruns(site, books, mayhem.killed)
    worst_s = max(delays, default=0.0)
    assert worst_s < LEASE_S + 5, "a job was stuck"

    figure(
        f"{site.kind}: kills of producers and workers", f"{KILLS}: {accepted} accepted, 0 missing, 0 doubled"
    )
    figure(
        f"{site.kind}: cut off by a kill, run again after",
        f"at most {worst_s:.2f} s, {len(delays)} runs (bound: lease + 5 s = {LEASE_S + 5:g} s)",
    )
    figure(
        f"{site.kind}: after the last kill",
        f"all done in {over_at - calm_at:.1f} s; {poisoned} jobs hit three times, replayed",
    )


def _check_submissions(site: Site, books: Books) -> None:
    """All of a submission or nothing: its list, its record. Nobody has jobs that nobody asked for."""
    by_name = defaultdict(list)
    for job in books.jobs.values():
        by_name[job.metadata["name"]].append(job)
    asked = {line["name"]: line["kind"] for line in site.lines("asked")}
    promised = {line["name"] for line in site.lines("promised")}
    assert by_name.keys() <= asked.keys()
    for name, kind in asked.items():
        whole = LIST_SIZE if "list" in kind else 1
        found = len(by_name[name])
        assert found in {0, whole}, f"{found} jobs of {name} ({kind})"
        # A twin's work is done by another job, so it has none of its own.
        assert found or name not in promised or kind == "dedup", f"{name} ({kind}) was promised and is gone"
        assert (name in books.records[INPUTS]) == (kind == "record" and bool(found))


def _check_keys(site: Site, books: Books) -> None:
    """The same key, the same jobs, however often and by whomever it was sent."""
    answers = defaultdict(set)
    for line in site.lines("promised"):
        if "keyed" in line["kind"]:
            answers[line["name"]].add(tuple(line["ids"]))
    assert answers
    for name, heard in answers.items():
        assert len(heard) == 1, f"key {name} gave {heard}"
        assert {job.id for job in books.named(name)} == set(next(iter(heard)))
