"""A worker with nothing to do costs next to nothing. Both stores are looked at in the same ten seconds."""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import postgres
import pytest
from conftest import Figure
from crash.conftest import missing_postgres, site_on
from crash.harness import Child, Family, Nursery, Site, until

LOOK_S = 10.0
MOST_OF_A_CORE = 0.01
MOST_STATEMENTS_PER_S = 5.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LOGGED = re.compile(r"LOG:  (?:statement|execute)")


@dataclass(frozen=True)
class Idler:
    """A worker without work."""

    site: Site
    worker: Child
    server: postgres.Server | None = None

    def cpu_s(self) -> float:
        """User and system time of all its threads."""
        fields = Path(f"/proc/{self.worker.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def statements(self) -> int:
        """So far, by PostgreSQL's log. On SQLite they are not counted."""
        return len(LOGGED.findall(self.server.log)) if self.server is not None else 0


@pytest.fixture
def idlers(nursery: Nursery, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Idler]]:
    families: list[Family] = []

    def idle(site: Site, server: postgres.Server | None = None) -> Idler:
        site.folder.mkdir()
        families.append(Family(nursery, site))
        return Idler(site, families[-1].worker(), server)

    try:
        found = [idle(site_on("sqlite", request, tmp_path / "sqlite"))]
        if not missing_postgres():
            site = _logged(site_on("postgres", request, tmp_path / "postgres"))
            found.append(idle(site, request.getfixturevalue("postgres_server")))
        yield found
    finally:
        for family in families:
            family.end()


def _logged(site: Site) -> Site:
    """In a database of its own, which logs every statement: PostgreSQL's counters lag behind by seconds."""

    async def create() -> None:
        connection = await asyncpg.connect(site.database)
        await connection.execute("drop database if exists idle with (force)")
        await connection.execute("create database idle")
        await connection.execute("alter database idle set log_statement = 'all'")
        await connection.close()

    asyncio.run(create())
    return replace(site, database=site.database.removesuffix("postgres") + "idle")


def test_an_idle_worker_uses_less_than_a_hundredth_of_a_core(idlers: list[Idler], figure: Figure) -> None:
    """It is woken when there is work; looking by itself is only for what nobody rang for."""
    workers = [idler.worker for idler in idlers]
    until("all are up", lambda: all(idler.site.lines("up") for idler in idlers), *workers)
    before = [(idler.cpu_s(), idler.statements()) for idler in idlers]
    # Nothing can be waited for: that nothing happens is what is measured.
    time.sleep(LOOK_S)
    for idler, (cpu_s, statements) in zip(idlers, before, strict=True):
        share = (idler.cpu_s() - cpu_s) / LOOK_S
        per_s = (idler.statements() - statements) / LOOK_S
        assert not idler.worker.is_over()
        assert share < MOST_OF_A_CORE
        assert per_s < MOST_STATEMENTS_PER_S
        assert bool(per_s) == (idler.site.kind == "postgres")
        asked = f", {per_s:.1f} statements/s (bound: {MOST_STATEMENTS_PER_S:g})" if per_s else ""
        told = f"{share:.2%} of a core (bound: {MOST_OF_A_CORE:.0%}){asked}"
        figure(f"{idler.site.kind}: an idle worker", told)
