"""One run at a time on a machine: two at once would both pay for the same items, and mail them twice."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import headgate


class AnotherRun(headgate.HeadgateError):
    """A run is at work on the same data."""

    code = "newsletter_another_run"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """The kernel keeps the lock, and lets it go with a process that is killed."""
    path = folder / "newsletter.lock"
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AnotherRun(f"another run of the newsletter is at work on this data ({path}).") from None
        yield


def _opened(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w")
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror}; check data_dir and its permissions"
        raise headgate.SettingsError(why) from error
