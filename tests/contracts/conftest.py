"""The contract's tests run on every store."""

from stores_under_test import home

__all__ = ["home"]
