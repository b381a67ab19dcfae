"""The store in one file: apsw's SQLite, one writer thread with group commit, readers apart."""

from headgate.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
