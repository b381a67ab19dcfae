"""The store on PostgreSQL: asyncpg, group commit, claims with SKIP LOCKED, finished jobs in a table of their own."""

from headgate.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
