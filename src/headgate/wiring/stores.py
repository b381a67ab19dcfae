"""The table of stores: which database the settings name, and what its adapter knows of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from headgate.core.errors import SettingsError
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import Store
from headgate.settings import Settings
from headgate.settings.database import shown_database
from headgate.stores import sql
from headgate.stores.sqlite import SqliteStore

SQLITE: Final = "sqlite"
DATABASE_FILE: Final = "headgate.db"


def build_store(settings: Settings, *, clock: Clock, new_id: Callable[[], str]) -> Store:
    """The database that the settings name, not opened yet."""
    if (path := database_file(settings)) is not None:
        return SqliteStore(path, clock=clock, new_id=new_id)
    return _postgres(settings.database, clock, new_id)


def database_file(settings: Settings) -> Path | None:
    """Where the database lies, if it is a file."""
    return settings.data_dir / DATABASE_FILE if settings.database == SQLITE else None


def database_name(settings: Settings) -> str:
    """For people: the whole path of a file, or the URL without its password."""
    file = database_file(settings)
    return f"postgres {shown_database(settings.database)}" if file is None else str(file.absolute())


def schema_number(settings: Settings) -> int:
    """The schema that this version knows: an open store has it."""
    kind = "sqlite" if settings.database == SQLITE else "postgres"
    return len(sql.migrations(f"headgate.stores.{kind}.migrations"))


def _postgres(url: str, clock: Clock, new_id: Callable[[], str]) -> Store:
    try:
        from headgate.stores.postgres import PostgresStore  # noqa: PLC0415 - an extra: not everybody has it
    except ImportError as error:
        raise SettingsError.missing_extra("database: PostgreSQL", "postgres") from error
    return PostgresStore(url, clock=clock, new_id=new_id)
