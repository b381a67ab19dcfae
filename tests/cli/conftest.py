"""The desk at which the commands are typed."""

from pathlib import Path

import pytest
from cli.command_stage import Desk


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, capsys, monkeypatch)
