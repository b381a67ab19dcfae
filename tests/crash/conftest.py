"""Where the crash tests play: on each store, with real processes, none of which outlives its test."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from crash.harness import Family, Nursery, Site

KINDS = ("sqlite", "postgres")


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    if not hasattr(os, "pidfd_open"):
        pytest.skip("the crash tests need Linux: pidfd, prctl, /proc")
    open_ = Nursery()
    yield open_
    open_.close()


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return site_on(request.param, request, tmp_path)


@pytest.fixture
def family(nursery: Nursery, site: Site) -> Iterator[Family]:
    children = Family(nursery, site)
    try:
        yield children
    finally:
        children.end()


def site_on(kind: str, request: pytest.FixtureRequest, folder: Path) -> Site:
    """An empty place. Skipped where there is no PostgreSQL."""
    if kind == "sqlite":
        return Site(kind, folder, "sqlite")
    if missing := missing_postgres():
        pytest.skip(missing)
    return Site(kind, folder, str(request.getfixturevalue("postgres_url")))


def missing_postgres() -> str | None:
    """Why there is none; but a CI that kills nothing on PostgreSQL proves half, and fails."""
    try:
        _ = importlib.import_module("headgate.stores.postgres").PostgresStore
    except (ImportError, AttributeError) as error:
        missing = f"headgate.stores.postgres.PostgresStore cannot be imported: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        return missing
    return None
