"""Every test in a folder of its own; those of the served gateway on each store."""

from pathlib import Path

import pytest
from jobstage import database as job_database
from server.conftest import play

__all__ = ["job_database", "play"]


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def served_on(request: pytest.FixtureRequest) -> str:
    """The setting `database`: each store in turn, empty."""
    return "sqlite" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
