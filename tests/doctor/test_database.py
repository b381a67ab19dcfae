"""The database as the doctor meets it: a real PostgreSQL, and one that is not there."""

import asyncio
from pathlib import Path

from headgate import wiring
from headgate.doctor.finding import State
from headgate.doctor.store import Opened, open_store
from headgate.machine.clock import SystemClock
from headgate.machine.ids import random_id
from headgate.wiring.stores import build_store, schema_number


def examine(folder: Path, database: str) -> Opened:
    settings = wiring.read_settings({"data_dir": str(folder), "database": database}, env={})
    clock = SystemClock()
    store = build_store(settings, clock=clock, new_id=random_id)
    return asyncio.run(open_store(store, clock, schema=schema_number(settings)))


def test_a_postgres_tells_its_schema_and_how_its_clock_stands(tmp_path: Path, postgres_url: str) -> None:
    opened = examine(tmp_path, postgres_url)

    assert opened.finding.state is State.OK
    assert "schema " in opened.finding.found
    assert opened.finding.found.endswith("its clock agrees with ours")
    assert opened.keys == []


def test_a_database_that_is_away_is_told_without_its_password(tmp_path: Path) -> None:
    opened = examine(tmp_path, "postgresql://ann:secret@127.0.0.1:1/headgate")

    assert (opened.finding.state, opened.keys) == (State.FAIL, None)
    assert "127.0.0.1:1" in opened.finding.found
    assert "secret" not in opened.finding.found
