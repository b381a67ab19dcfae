"""Applications have commands, too."""

from cli.conftest import desk

__all__ = ["desk"]
