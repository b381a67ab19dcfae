"""A pytest plugin: an internal error fails the test in which it happens. A test that provokes one on purpose is marked
`provokes_internal_error`, and then one must happen.

An internal error is a 500 `internal`, or an exception that our own code raised and did not foresee: in an attempt at a job,
or in a loop that logs it and goes on. It is read from the log, and from what the processes that a test started have
written: their fixtures hand it to `read`.
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import headgate
from headgate.core.errors import HeadgateError

MARKER: Final = "provokes_internal_error"
SAID: Final = "(internal)"
"""What the log says where the client got a 500 `internal`."""
_PACKAGE: Final = str(Path(headgate.__file__).parent)
_FRAME: Final = re.compile(r'^  File "(.+?)", line \d+', re.MULTILINE)
_PASSED: Final = pytest.StashKey[bool]()
_found: list[str] = []


def read(output: str | bytes | None) -> None:
    """What a process has written, to its end: to its log, or to stderr."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    if SAID in text or "Traceback (most recent call last)" in text:
        _found.append(text)


class _Listener(logging.Handler):
    """Hears what this process logs."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if SAID in message or _is_ours(record) or _lost_an_attempt(record):
            _found.append(f"{record.levelname} {message}\n{_story(record)}")


def _is_ours(record: logging.LogRecord) -> bool:
    """Somewhere an error was survived that began in our own code, and that no rule foresees."""
    error = record.exc_info[1] if record.exc_info else None
    if record.levelno < logging.ERROR or error is None or isinstance(error, HeadgateError | OSError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _lost_an_attempt(record: logging.LogRecord) -> bool:
    """A job failed of an error that began in our own code, not in its task."""
    if record.module != "attempt" or not isinstance(record.args, tuple) or len(record.args) != 3:
        return False
    story = str(record.args[2])
    frames = _FRAME.findall(story)
    ours = bool(frames) and frames[-1].startswith(_PACKAGE)
    return ours and not story.splitlines()[-1].startswith("headgate.")


def _story(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


# ---- For pytest -------------------------------------------------------------------------------------------------


def pytest_configure() -> None:
    logging.getLogger("headgate").addHandler(_LISTENER)


def pytest_unconfigure() -> None:
    logging.getLogger("headgate").removeHandler(_LISTENER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    _found.clear()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield
    item.stash[_PASSED] = True
    if item.get_closest_marker(MARKER) is None:
        _fail_for_what_was_found()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Processes often say only at their end what went wrong."""
    yield
    for _, kind, text in item._report_sections:  # Also of processes that share our stderr.
        if kind == "stderr" and SAID in text:
            _found.append(text)
    if item.get_closest_marker(MARKER) is None:
        _fail_for_what_was_found()
    elif not _found and item.stash.get(_PASSED, False):  # One that was skipped had no occasion.
        pytest.fail(f"marked {MARKER}, but no internal error happened", pytrace=False)


def _fail_for_what_was_found() -> None:
    errors = "\n".join(_found)
    _found.clear()
    if errors:
        pytest.fail(
            f"an internal error happened; mark the test {MARKER} if that is its purpose:\n{errors}",
            pytrace=False,
        )


_LISTENER: Final = _Listener()
