"""Where the file lies: made for its owner's eyes only, and watched while it is in use.

A file that is deleted while it is open goes on taking writes, and they are lost when the process ends. Who looks for
its name before each answer notices.
"""

import contextlib
import os
from pathlib import Path

from headgate.core.errors import SettingsError, StoreUnavailable
from headgate.machine.sqlite.troubles import translated


class Place:
    """One path, and the file that was there when it was first opened."""

    def __init__(self, path: Path) -> None:
        self.name = f"sqlite {path}"
        # A task may change the folder it works in; the file stays where it was.
        self.path = path.absolute()
        self._file: tuple[int, int] | None = None

    def make(self) -> None:
        """The folder, and the file if there is none: it will hold prompts, so nobody else may read it."""
        if self.path.is_dir():
            raise IsADirectoryError("this is a folder, not a file; move it away, or set another data_dir")
        self._make_folder()
        # Never opened when it is there: to close it again would drop this process's locks on it. Where it cannot be
        # made, SQLite will say why.
        with contextlib.suppress(OSError):
            new = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
            os.close(os.open(os.path.realpath(self.path), new, 0o600))

    def _make_folder(self) -> None:
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if self.translated(error) is not error:
                raise
            why = f"the folder {folder} cannot be made: {error.strerror}; check the path and its permissions"
            raise SettingsError(why) from error

    def check(self) -> None:
        """Raise when the file is not there any more, or is another one. Takes 2 µs."""
        found = self._look()
        if self._file is None:
            self._file = found
        elif found != self._file:
            raise StoreUnavailable(
                f"{self.name}: the file was deleted or replaced while in use; put it back, or restart to use what"
                " is there now. Until then nothing is accepted",
                waiting_helps=False,
            )

    def translated(self, error: BaseException) -> BaseException:
        return translated(error, self.name, self.path)

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreUnavailable(f"{self.name}: {error}") from error
        return found.st_dev, found.st_ino
