"""The real gateway's own stage serves here, too."""

from pathlib import Path

import pytest
from server.conftest import play

__all__ = ["play"]


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HEADGATE_URL", "HEADGATE_API_KEY", "HEADGATE_OUTBOX"):
        monkeypatch.delenv(name, raising=False)
