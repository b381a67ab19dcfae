"""Die right before and right after the commit of every verb that writes: whoever comes next finds it whole or not at all."""

import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import Figure
from crash import audit
from crash.audit import Books
from crash.gauntlet import LEASE_S, LIST_SIZE, VERBS
from crash.harness import Child, Family, Site, until

import headgate
from headgate.core.job import Job, JobState
from headgate.stores.failpoints import MOMENTS, VARIABLE

STORES = Path(headgate.__file__).parent / "stores"
COMMITS = re.compile(
    r'\b(?:_?write|transact|copy|_mark|reach)\(\s*\[?"(\w+)"|^VERB\b.* = "(\w+)"', re.MULTILINE
)
OFTEN = ("accept", "claim", "settle")
"""Verbs that a run gets to more than once: they also die at the third time."""
JOBS: dict[str, Any] = {"lease_s": LEASE_S, "revive_after_s": 0.01}
ENDS = {
    "effect": {"completed"},
    "listed": {"completed"},
    "soon": {"completed"},
    "early": {"completed"},
    # Who died before the replay leaves a dead letter; who died before the expiry, a job that was run after all.
    "late": {"completed", "expired"},
    "unloved": {"completed", "expired", "discarded"},
    "unwanted": {"completed", "cancelled"},
    "a line": {"completed", "cancelled"},
    "endless": {"completed", "cancelled"},
    "failing": {"exhausted"},
}
DONE = {
    "replayed": {"completed"},
    "discarded": {"discarded"},
    "cancelled": {"cancelled"},
    "revived": {"exhausted"},
}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_verb_that_commits_has_its_failpoint(kind: str) -> None:
    """A verb that is added later cannot forget to be killed."""
    texts = [file.read_text() for file in (STORES / kind).glob("*.py")]
    found = {name for text in texts for match in COMMITS.findall(text) for name in match if name}
    assert found == set(VERBS)


def test_a_failpoint_is_armed_by_the_environment(tmp_path: Path) -> None:
    """As an operator would do it; the children of the other tests are armed after their fork."""
    code = f"import headgate, asyncio; g = headgate.open_blocking({{'data_dir': {str(tmp_path)!r}}}, work=True); g.__enter__()"
    armed = {**os.environ, VARIABLE: "join.before_commit:1"}
    done = subprocess.run([sys.executable, "-c", code], env=armed, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


def test_a_death_around_any_commit_leaves_all_or_nothing(family: Family, site: Site, figure: Figure) -> None:
    """One database for all rounds: each run finds what the one before left behind, and must get through with it."""
    failpoints = [*_failpoints(VERBS, 1), *_failpoints(OFTEN, 3)]
    before = None
    for name in failpoints:
        child = _run(family, name, before, failpoint=name)
        assert child.wait() == -signal.SIGKILL, f"{name} was never reached:\n{site.log_of(child)[-3000:]}"
        before = name
    assert not site.lines("through")
    last = _run(family, "last", before)
    assert last.wait() == 0, site.log_of(last)[-3000:]
    family.worker(**JOBS)
    poisoned = audit.finish(site, within_s=LEASE_S + 5)

    books = audit.open_books(site, "inputs", "kept", "dropped", "files")
    audit.check_promises(books, _done(site, "accepted"))
    audit.check_effects(site, books)
    audit.check_thoughts(site)
    _check_ends(site, books)
    _check_accepts(site, books)
    _check_records(site, books)
    _check_keys(site, books)
    _check_secrets(site)
    _check_answers(site)
    figure(
        f"{site.kind}: deaths around commits",
        f"{len(failpoints)} at {len(VERBS)} verbs: all or nothing; {poisoned} jobs hit three times, replayed",
    )


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rescuer_that_dies_rescuing_is_followed_by_another(family: Family, site: Site, moment: str) -> None:
    """The write that takes over lost jobs is killed too: they are counted as crashed once per death, and run."""
    jobs = audit.submit(site, [{"run_s": 5.0} for _ in range(5)])
    first = family.worker(**JOBS)
    until("all run", lambda: len(site.lines("effects")) == len(jobs), first)
    first.kill()
    rescuer = family.worker(failpoint=f"settle.{moment}", **JOBS)
    assert rescuer.wait() == -signal.SIGKILL
    family.worker(pace=0.0, **JOBS)
    audit.wait_for_all(site, within_s=LEASE_S + 5)

    books = audit.open_books(site)
    audit.check_effects(site, books)
    assert {(job.state, job.crashes) for job in books.jobs.values()} == {(JobState.COMPLETED, 1)}


def _failpoints(verbs: Iterable[str], count: int) -> list[str]:
    return [f"{verb}.{moment}:{count}" for verb in verbs for moment in MOMENTS]


def _run(family: Family, name: str, before: str | None, failpoint: str | None = None) -> Child:
    settings = family.site.settings(**JOBS)
    return family.start("gauntlet", failpoint=failpoint, settings=settings, name=name, before=before)


def _done(site: Site, what: str) -> list[str]:
    return [job for line in site.lines("done") if line["what"] == what for job in line["ids"]]


def _end(job: Job) -> str:
    return str(job.reason if job.state in {JobState.DEAD_LETTER, JobState.CANCELLED} else job.state)


def _check_ends(site: Site, books: Books) -> None:
    """Each job ended as it could; and what was told to a caller before the death is still true."""
    for job in books.jobs.values():
        assert job.metadata, f"{job.id} was pruned, and is back"
        assert _end(job) in ENDS[job.metadata["what"]], f"{job.metadata} ended as {_end(job)}"
    for what, ends in DONE.items():
        for job_id in _done(site, what):
            assert _end(books.jobs[job_id]) in ends, f"{what}, and then {_end(books.jobs[job_id])}"


def _check_accepts(site: Site, books: Books) -> None:
    """A death before the commit leaves no job, a death after it leaves them all, and a list is never cut."""
    by_what = defaultdict(list)
    for job in books.jobs.values():
        by_what[job.metadata["name"], job.metadata["what"]].append(job)
    assert not by_what["accept.before_commit:1", "effect"]
    assert len(by_what["accept.after_commit:1", "effect"]) == 1
    for name in _failpoints(VERBS, 1):
        assert len(by_what[name, "effect"]) in {0, 1}
        assert len(by_what[name, "listed"]) in {0, LIST_SIZE}
        assert (name in books.records["inputs"]) == bool(by_what[name, "effect"])


def _check_records(site: Site, books: Books) -> None:
    said = {
        what: {line["name"] for line in site.lines("done") if line["what"] == what}
        for what in ("kept", "dropped", "pruned file")
    }
    assert said["kept"] <= books.records["kept"]
    assert not said["dropped"] & books.records["dropped"]
    assert said["pruned file"]
    assert not books.records["files"]


def _check_keys(site: Site, books: Books) -> None:
    """A key that was shown is there, and one that was reported as revoked opens nothing."""
    said = {
        what: {line["name"] for line in site.lines("done") if line["what"] == what}
        for what in ("key", "revoked")
    }
    assert said["key"] <= books.revoked.keys()
    assert all(books.revoked[name] for name in said["revoked"])
    assert not any(revoked for name, revoked in books.revoked.items() if not name.endswith("revoked key"))


def _check_secrets(site: Site) -> None:
    """A secret that was shown can be decrypted and is in force, in its order; others may have been committed unseen."""
    shown = [line["secret"] for line in site.lines("done") if line["what"] == "rotated"]
    in_force = audit.secrets_in_force(site)
    assert shown
    assert [secret for secret in in_force if secret in shown] == shown[::-1]


def _check_answers(site: Site) -> None:
    """A direct call under a key is answered once: whoever asks again, in whichever process, hears the same."""
    heard = defaultdict(set)
    for line in site.lines("done"):
        if line["what"] == "answered":
            heard[line["key"]].add(line["request_id"])
    assert len(heard) > len(VERBS)
    assert all(len(answers) == 1 for answers in heard.values())
