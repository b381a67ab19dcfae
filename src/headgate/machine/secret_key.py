"""The key that stored secrets are encrypted with: the setting, or a file beside the data. Everything here blocks."""

import contextlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

from headgate.core.sealing import key_of

FILE: Final = "secret.key"


class SecretKey:
    """Without a setting, the key is in a file of its own, which is made when it is first needed."""

    def __init__(self, setting: str | None, data_dir: Path) -> None:
        self.file = data_dir / FILE
        self._setting = setting

    @property
    def is_set(self) -> bool:
        return self._setting is not None

    def read(self) -> bytes | None:
        """None: there is none yet."""
        if self._setting is not None:
            return key_of(self._setting)
        try:
            return key_of(self.file.read_text(encoding="ascii").strip())
        except FileNotFoundError:
            return None

    def make(self) -> bytes:
        """Read it, or make the file. It appears whole and durable; of several that make it, one counts."""
        key = self.read()
        if key is not None:
            return key
        folder = self.file.parent
        folder.mkdir(parents=True, exist_ok=True)
        # Its mode is 0600 from the start.
        fd, draft = tempfile.mkstemp(prefix=".secret-", dir=folder)
        try:
            os.write(fd, f"{secrets.token_hex(32)}\n".encode())
            os.fsync(fd)
            with contextlib.suppress(FileExistsError):
                os.link(draft, self.file)
        finally:
            os.close(fd)
            Path(draft).unlink()
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        return key_of(self.file.read_text(encoding="ascii").strip())
