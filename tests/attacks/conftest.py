"""Attacks go through the served gateway, on each store where one is involved."""

from server.conftest import database, own_directory, play

__all__ = ["database", "own_directory", "play"]
