"""How SQLite goes about the statements that run all day: by the index meant for them, never through the table.

A plan that scans is right on ten jobs and wrong on ten million: it is read from SQLite itself, not measured.
"""

import re
from collections.abc import Iterator

import apsw
import pytest

from headgate.core.job import JobState
from headgate.stores.sqlite.base import SQL
from headgate.stores.sqlite.connection import connect, migrate
from headgate.stores.sqlite.jobs import _INDEXES, _STATES

STATEMENTS = {
    # ---- claiming
    "line": "SEARCH jobs USING INDEX jobs_ready (tenant=? AND model=?)",
    "suspects_line": "SCAN jobs USING INDEX jobs_suspect",
    "take": "SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)",
    "ready_tenants": "SEARCH jobs USING COVERING INDEX jobs_ready (tenant>?)",
    "ready_models": "SEARCH jobs USING COVERING INDEX jobs_ready (tenant=? AND model>?)",
    "any_suspect": "SCAN jobs USING COVERING INDEX jobs_suspect",
    "next_scheduled": "SEARCH jobs USING COVERING INDEX jobs_scheduled",
    "promote": "SEARCH jobs USING COVERING INDEX jobs_scheduled (run_at<?)",
    "to_cancel": "SEARCH jobs USING INDEX jobs_running (owner=?)",
    "settle": "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)",
    "holds": "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)",
    "save_progress": "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)",
    "steps_of": "SEARCH steps USING PRIMARY KEY (job_id=?)",
    # ---- submissions and people
    "find_twin": "SEARCH jobs USING INDEX jobs_dedup (tenant=? AND task=? AND dedup_key=?)",
    "find_job": "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)",
    "cancel_pending": "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)",
    "cancel_running": "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)",
    "replay_job": "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)",
    "discard_job": "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)",
    "states_of": "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)",
    "backlog": "SEARCH jobs USING INDEX jobs_rare (state=?)",
    "make_due": "SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)",
    "make_deferred_due": "SCAN jobs USING INDEX jobs_scheduled",
    # ---- batches
    "batch_counts": "SEARCH jobs USING COVERING INDEX jobs_batch (tenant=? AND batch_id=?)",
    "batch_jobs": "SEARCH jobs USING INDEX jobs_batch (tenant=? AND batch_id=? AND id>?)",
    "cancel_pending_of_batch": "SEARCH jobs USING COVERING INDEX jobs_batch (tenant=? AND batch_id=?)",
    "cancel_running_of_batch": "SEARCH jobs USING INDEX jobs_batch (tenant=? AND batch_id=?)",
    # ---- upkeep
    "expire": "INDEX jobs_expiring (expires_at<?)",
    "lost": "SCAN jobs USING INDEX jobs_running",
    "uncancelled": "SCAN jobs USING INDEX jobs_running",
    "revivable": "SEARCH jobs USING INDEX jobs_reviving (revive_at>? AND revive_at<?)",
    "prune_jobs": "INDEX jobs_finished (finished_at<?)",
    "purge_keys": "SEARCH idempotency_keys USING COVERING INDEX idempotency_keys_expires (expires_at<?)",
    # ---- keys and records
    "find_key": "SEARCH idempotency_keys USING PRIMARY KEY (tenant=? AND endpoint=? AND key=?)",
    "mark_sent": "SEARCH idempotency_keys USING PRIMARY KEY (tenant=? AND endpoint=? AND key=?)",
    "held_keys": "SEARCH idempotency_keys USING INDEX idempotency_keys_owner (owner=?)",
    "finish_key": "SEARCH idempotency_keys USING PRIMARY KEY (tenant=? AND endpoint=? AND key=?)",
    "unique_holder": "USING INDEX records_unique (tenant=? AND collection=? AND unique_key=?)",
    "find_record": "USING INDEX records_unique (tenant=? AND collection=? AND unique_key=?)",
    "list_records": "USING INDEX sqlite_autoindex_records_1 (tenant=? AND collection=?)",
}
BIG = ("jobs", "inputs", "results", "steps", "idempotency_keys", "records")
SMALL_SETS = ("jobs_ready", "jobs_suspect", "jobs_scheduled", "jobs_running", "jobs_expiring")
"""Partial indexes: to walk along one is to look at those who live, not at all who ever did."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """Opened as the store opens it: some settings change how SQLite plans."""
    connection = connect(tmp_path_factory.mktemp("plans") / "jobs.db")
    migrate(connection)
    yield connection
    connection.close()


def plan(database: apsw.Connection, statement: str) -> list[str]:
    names = set(re.findall(r"(?<!:):(\w+)", statement))
    bindings = dict.fromkeys(names) if names else (None,) * statement.count("?")
    return [str(row[3]) for row in database.execute(f"explain query plan {statement}", bindings)]


def scans(steps: list[str]) -> list[str]:
    """Steps that go through a big table, or an index of all of it."""
    walks = [step for step in steps if re.match(rf"SCAN ({'|'.join(BIG)})\b", step)]
    return [step for step in walks if not step.split()[-1].startswith(SMALL_SETS)]


@pytest.mark.parametrize(("name", "expected"), STATEMENTS.items(), ids=STATEMENTS)
def test_a_statement_goes_by_its_index(database: apsw.Connection, name: str, expected: str) -> None:
    """Ten million finished jobs must not make the next claim slower."""
    steps = plan(database, getattr(SQL, name))

    assert any(expected in step for step in steps), steps
    assert not scans(steps), steps


@pytest.mark.parametrize(
    "name",
    [
        "line",
        "suspects_line",
        "promote",
        "expire",
        "revivable",
        "prune_jobs",
        "ready_tenants",
        "ready_models",
        "batch_jobs",
        "cancel_pending_of_batch",
        "cancel_running_of_batch",
    ],
)
def test_whoever_is_next_is_found_without_sorting(database: apsw.Connection, name: str) -> None:
    """The index has the order already; to sort a backlog of a million for one job would be a claim per second."""
    assert not [step for step in plan(database, getattr(SQL, name)) if "TEMP B-TREE" in step]


@pytest.mark.parametrize("state", [None, *JobState], ids=str)
@pytest.mark.parametrize("filters", ["", "and tenant = :tenant and task = :task", "and reason = :reason"])
def test_a_page_of_jobs_goes_by_an_index(
    database: apsw.Connection, state: JobState | None, filters: str
) -> None:
    """From the newest on, or through the few that are in that state; and SQLite must find a plan at all."""
    statement = SQL.list_jobs.format(index=_INDEXES.get(state, ""), states=_STATES[state], filters=filters)
    steps = plan(database, statement)

    assert not scans(steps), steps


def test_dead_letters_are_listed_without_sorting(database: apsw.Connection) -> None:
    """The screen that is looked at when things go wrong, and then there are many."""
    statement = SQL.list_jobs.format(
        index=_INDEXES[JobState.DEAD_LETTER], states=_STATES[JobState.DEAD_LETTER], filters=""
    )

    assert any("INDEX jobs_rare (state=? AND id<?)" in step for step in plan(database, statement))
