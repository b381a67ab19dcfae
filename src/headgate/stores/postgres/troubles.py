"""asyncpg's errors as ours: the store's own trouble, a request that no database can hold, a clash worth repeating."""

from typing import Final

import asyncpg  # type: ignore[import-untyped]

from headgate.core.errors import HeadgateError, InvalidRequest, SettingsError, StoreUnavailable

RECORDS_UNIQUE: Final = "records_unique"

FOREIGN: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    # From COPY: a number that is too large for its column.
    OverflowError,
)
_CLASHES: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    # Another node changed the schema under a prepared statement, inside a transaction.
    asyncpg.InvalidCachedStatementError,
)
_BROKEN: Final = (
    OSError,
    asyncpg.InterfaceError,
    # What asyncpg says of a connection that was told to go and is not closed yet.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    # After a failover the old connections may lead to what is a standby now.
    asyncpg.ReadOnlySQLTransactionError,
)
_UNHOLDABLE: Final = (asyncpg.DataError, asyncpg.ProgramLimitExceededError, OverflowError)
_OPERATORS: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ClientConfigurationError,
)
"""What only the operator can mend; waiting does not."""
_FORGOTTEN_STATEMENTS: Final = (
    asyncpg.InvalidSQLStatementNameError,
    asyncpg.DuplicatePreparedStatementError,
)
"""A prepared statement is not where it was prepared: another server connection answers now."""
_POOLER: Final = "behind a pooler such as PgBouncer add ?statement_cache_size=0 to the database's URL"
_ADVICE: Final[tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...]] = (
    (asyncpg.TooManyConnectionsError, "it has no connection left for us"),
    (asyncpg.CannotConnectNowError, "it is starting or stopping"),
    ((asyncpg.AdminShutdownError, asyncpg.CrashShutdownError), "it is stopping"),
    (asyncpg.DiskFullError, "its disk is full"),
    (asyncpg.ReadOnlySQLTransactionError, "it is read-only; is it a standby?"),
    (asyncpg.InvalidAuthorizationSpecificationError, "it refuses our user or password"),
    (asyncpg.InsufficientPrivilegeError, "our user may not do this; grant it the right"),
    (TimeoutError, "it does not answer in time"),
    (OSError, "it cannot be reached"),
    (asyncpg.PostgresConnectionError, "the connection broke"),
    ((asyncpg.InterfaceError, asyncpg.InternalClientError), "the connection broke"),
)


def translated(error: BaseException, name: str) -> BaseException:
    """Ours, with asyncpg's as its cause. Our own errors and plain mistakes pass as they are."""
    if isinstance(error, HeadgateError) or not isinstance(error, FOREIGN):
        return error
    ours: HeadgateError
    if isinstance(error, _UNHOLDABLE):
        ours = InvalidRequest(f"the database cannot hold this: {error}")
    else:
        ours = StoreUnavailable(
            f"{name}: {_why(error)} ({type(error).__name__}: {error})",
            waiting_helps=not (isinstance(error, _OPERATORS) or _is_a_poolers(error)),
        )
    ours.__cause__ = error
    return ours


def while_opening(error: StoreUnavailable) -> HeadgateError:
    """What only the operator can mend is told as such, at the start at least."""
    return error if error.waiting_helps else SettingsError(str(error))


def is_outage(error: BaseException) -> bool:
    """The store's own trouble, as opposed to ours with what we asked of it."""
    harmless = (*_UNHOLDABLE, *_CLASHES, asyncpg.IntegrityConstraintViolationError)
    return isinstance(error, FOREIGN) and not isinstance(error, harmless)


def is_broken(error: BaseException) -> bool:
    """The connection is gone, and those beside it may be too."""
    return isinstance(error, _BROKEN) and not isinstance(error, _UNHOLDABLE)


def is_clash(error: BaseException) -> bool:
    """Rolled back for somebody else's sake: the same again may well go through."""
    if isinstance(error, asyncpg.UniqueViolationError):
        # The holder's record was not there yet when we looked; now it is, and the next look names it.
        return bool(error.constraint_name == RECORDS_UNIQUE)
    return isinstance(error, _CLASHES)


def _is_a_poolers(error: BaseException) -> bool:
    """PgBouncer's refusal of a setting has the code of all its refusals, and only its words of its own."""
    refused = isinstance(error, asyncpg.ProtocolViolationError) and "startup parameter" in str(error)
    return refused or isinstance(error, _FORGOTTEN_STATEMENTS)


def _why(error: BaseException) -> str:
    if _is_a_poolers(error):
        return _POOLER
    return next((advice for kinds, advice in _ADVICE if isinstance(error, kinds)), "it failed")
