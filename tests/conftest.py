"""What all tests share: the table of measured figures at the end of a run."""

from collections.abc import Callable

import pytest

Figure = Callable[[str, str], None]


@pytest.fixture
def figure(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Figure:
    """Record a measured figure: `figure("what", "how much, and the bound")`."""

    def record(what: str, measured: str) -> None:
        record_property("figure", f"{what}\t{measured}")

    return record


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
