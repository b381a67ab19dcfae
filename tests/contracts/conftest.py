"""The contract's tests run on every store, and the core of them on PostgreSQL behind PgBouncer as well."""

import pytest
from stores_under_test import KINDS, POOLED, home

__all__ = ["home", "pytest_generate_tests"]
BEHIND_A_POOLER = {"test_accept", "test_claims", "test_settle", "test_keys", "test_upkeep"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "home" in metafunc.fixturenames:
        core = metafunc.module.__name__.rpartition(".")[2] in BEHIND_A_POOLER
        metafunc.parametrize("home", (*KINDS, POOLED) if core else KINDS, indirect=True)
