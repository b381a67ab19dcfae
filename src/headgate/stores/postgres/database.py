"""Talking to PostgreSQL: a pool, one statement or one transaction at a time, errors translated, no session state.

What is repeated, and what is not:
  * a clash (deadlock, serialisation) was rolled back for sure: everything is tried again, a few times;
  * after a lost connection nobody knows whether a commit went through. Reads and writes that end the same when
    done twice (`again=True`) are repeated once, on another connection. Nothing else is: an accept raises
    `StoreUnavailable` and its caller comes back with its key; a claim is given back later by its number; a settle
    is the worker's to repeat, because only the worker can tell its own first success from a lost claim.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import asyncpg  # type: ignore[import-untyped]

from headgate.core.errors import StoreUnavailable
from headgate.core.ports.clock import Clock
from headgate.machine.clock import TIMER_SLACK_S
from headgate.stores import failpoints
from headgate.stores.postgres.troubles import FOREIGN, is_broken, is_clash, is_outage, translated
from headgate.stores.postgres.url import Address

T = TypeVar("T")
Connection: TypeAlias = Any
"""asyncpg has no types of its own."""
Row: TypeAlias = Sequence[Any]
Use: TypeAlias = Callable[[Connection], Awaitable[T]]

MOST_CONNECTIONS: Final = 6
CONNECT_S: Final = 5.0
ACQUIRE_S: Final = 5.0
COMMAND_S: Final = 8.0
"""Then the server is asked to give the statement up; one that still can does so, and nothing was written."""
ANSWER_S: Final = 10.0
"""A verb's time in all. A server that does not even say that it gave up is left alone, its connection dropped."""
CLOSE_S: Final = 5.0
STATEMENT_S: Final = 3
"""A plan that was made for an empty table is no good when a flood has come: it is thrown away after this long."""
MOST_TRIES: Final = 5
SILENT_MS: Final = 3000
"""A node that falls silent amid a transaction holds its row locks no longer than this: others want its jobs."""
_BEGIN: Final = (
    "BEGIN ISOLATION LEVEL READ COMMITTED;"
    # In the same message: a node that falls silent right after it is limited as well. Only for this transaction,
    # because behind a pooler the connection is others' too.
    f" SET LOCAL idle_in_transaction_session_timeout = {SILENT_MS}"
)
KEEPALIVE_IDLE_S: Final = 15
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_COUNT: Final = 3
UNANSWERED_MS: Final = 30_000
"""A connection whose other end is gone without a word is closed after about half a minute, at both ends."""
_SERVER_KEEPALIVE: Final = {
    "tcp_keepalives_idle": str(KEEPALIVE_IDLE_S),
    "tcp_keepalives_interval": str(KEEPALIVE_INTERVAL_S),
    "tcp_keepalives_count": str(KEEPALIVE_COUNT),
    "tcp_user_timeout": str(UNANSWERED_MS),
}
_CLIENT_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": KEEPALIVE_IDLE_S,
    "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_S,
    "TCP_KEEPCNT": KEEPALIVE_COUNT,
    "TCP_USER_TIMEOUT": UNANSWERED_MS,
}


class Database:
    """The pool, and the only place that waits for it."""

    def __init__(
        self,
        address: Address,
        *,
        name: str,
        clock: Clock,
        on_trouble: Callable[[BaseException | None], None],
        on_trip: Callable[[float], None] = lambda _took_s: None,
    ) -> None:
        self._address = address
        self._name = name
        self._clock = clock
        self._on_trouble = on_trouble
        self._on_trip = on_trip
        # Without a statement cache, asyncpg prepares and executes in two steps: a pooler must keep them together.
        self._apart = address.statement_cache_size == 0
        self._pool: Any = None

    async def open(self) -> None:
        """No connection is made yet. None is kept in store either: asyncpg would log each failure to do so at length."""
        try:
            with self._clock.outside():
                self._pool = await asyncpg.create_pool(
                    self._address.dsn,
                    min_size=0,
                    max_size=MOST_CONNECTIONS,
                    init=_keep_alive,
                    reset=_leave_as_it_is,
                    max_inactive_connection_lifetime=0,
                    **self._options(),
                )
        except Exception as error:
            raise translated(error, self._name) from error

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        with self._clock.outside():
            try:
                async with asyncio.timeout(CLOSE_S):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    def check_open(self) -> None:
        if self._pool is None:
            raise StoreUnavailable(f"{self._name} is closed")

    async def connect(self) -> Connection:
        """A connection apart from the pool."""
        with self._clock.outside():
            connection = await asyncpg.connect(self._address.dsn, **self._options())
            await _keep_alive(connection)
            return connection

    async def read(self, statement: str, *arguments: Any) -> list[Row]:
        async def query(connection: Connection) -> list[Row]:
            rows: list[Row] = await connection.fetch(statement, *arguments)
            return rows

        return await self._run(self._held(query), again=True)

    async def write(self, verb: str, statement: str, *arguments: Any, again: bool = False) -> list[Row]:
        """One statement, committed when it returns. `again` says that doing it twice comes to the same."""

        async def change(connection: Connection) -> list[Row]:
            rows: list[Row] = await connection.fetch(statement, *arguments)
            return rows

        return await self._run(_marked(verb, self._held(change)), again=again)

    async def copy(self, verb: str, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Rows that can meet no conflict: COPY takes them in nearly twice as fast as INSERT does."""

        async def load(connection: Connection) -> None:
            await connection.copy_records_to_table(
                table, schema_name="headgate", columns=columns, records=rows, timeout=COMMAND_S
            )

        await self._run(_marked(verb, self._held(load)))

    async def command(self, statement: str, *, timeout: float = COMMAND_S) -> None:  # noqa: ASYNC109 - asyncpg's
        """A statement without arguments that no transaction is opened for."""

        async def send(connection: Connection) -> None:
            await connection.execute(statement, timeout=timeout)

        await self._run(send, within_s=timeout + ANSWER_S)

    async def transact(self, verb: str, body: Use[T], *, within_s: float | None = None) -> T:
        """All of `body` or nothing. It may be run several times, so it keeps nothing from one try to the next."""

        async def together(connection: Connection) -> T:
            async with _transaction(connection):
                result = await body(connection)
                failpoints.reach([verb], "before_commit")
            failpoints.reach([verb], "after_commit")
            return result

        return await self._run(together, within_s=within_s)

    def _held(self, use: Use[T]) -> Use[T]:
        if not self._apart:
            return use

        async def together(connection: Connection) -> T:
            async with _transaction(connection):
                return await use(connection)

        return together

    async def _run(self, use: Use[T], *, again: bool = False, within_s: float | None = None) -> T:
        started = time.perf_counter()
        try:
            return await self._tried(use, again=again, within_s=within_s)
        finally:
            self._on_trip(time.perf_counter() - started)

    async def _tried(self, use: Use[T], *, again: bool, within_s: float | None) -> T:
        loop = asyncio.get_running_loop()
        until = loop.time() + (ANSWER_S if within_s is None else within_s)
        for tries_left in reversed(range(MOST_TRIES)):
            try:
                result = await self._once(use, until)
            except Exception as error:
                may_repeat = tries_left and loop.time() + TIMER_SLACK_S < until
                if may_repeat and is_clash(error):
                    continue
                if is_broken(error):
                    await self._distrust()
                    if again and may_repeat:
                        again = False
                        continue
                ours = translated(error, self._name)
                if is_outage(error):
                    self._on_trouble(ours)
                raise ours from error
            self._on_trouble(None)
            return result
        raise AssertionError("unreachable: the last try returns or raises")

    async def _once(self, use: Use[T], until: float) -> T:
        self.check_open()
        pool = self._pool
        loop = asyncio.get_running_loop()
        with self._clock.outside():
            connection = await self._acquire(pool, until - loop.time())
            # asyncpg waits without end for a silent server's word on what was given up. Only this ends it.
            ending = loop.call_at(until, connection.terminate)
            try:
                return await use(connection)
            except FOREIGN as error:
                if loop.time() + TIMER_SLACK_S >= until:
                    raise TimeoutError(f"no answer in time: {error}") from error
                raise
            finally:
                try:
                    await pool.release(connection)
                finally:
                    ending.cancel()

    async def _acquire(self, pool: Any, left_s: float) -> Connection:
        wait_s = min(ACQUIRE_S, left_s)
        try:
            return await pool.acquire(timeout=wait_s)
        except TimeoutError:
            if pool.get_size() < MOST_CONNECTIONS:
                raise
            # The database is well; it is we who ask too much of it. No reason to distrust its connections.
            message = f"{self._name}: all {MOST_CONNECTIONS} connections have been busy for {wait_s:.1g} s"
            raise StoreUnavailable(message) from None

    async def _distrust(self) -> None:
        """After one connection broke, the idle ones beside it are replaced before they are used again."""
        if self._pool is not None:
            await self._pool.expire_connections()

    def _options(self) -> dict[str, Any]:
        # A pooler is asked for nothing that it may not know; its own connections to the server are its own business.
        settings = {} if self._apart else _SERVER_KEEPALIVE
        return {
            "timeout": CONNECT_S,
            "command_timeout": COMMAND_S,
            "statement_cache_size": self._address.statement_cache_size,
            "max_cached_statement_lifetime": STATEMENT_S,
            "server_settings": {"application_name": "headgate", **settings},
        }


@contextlib.asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[None]:
    """As asyncpg's own, but for what goes out together with its BEGIN."""
    await connection.execute(_BEGIN)
    try:
        yield
    except BaseException:
        if not connection.is_closed():
            await connection.execute("ROLLBACK;")
        raise
    await connection.execute("COMMIT;")


async def _keep_alive(connection: Connection) -> None:
    """Idle connections notice that the other end is gone, the one that listens above all."""
    own = connection._transport.get_extra_info("socket")  # noqa: SLF001 - asyncpg shows it nowhere else
    if own is None or own.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _CLIENT_KEEPALIVE.items():
        # Not every system has them all.
        if option := getattr(socket, name, None):
            own.setsockopt(socket.IPPROTO_TCP, option, value)


def _marked(verb: str, use: Use[T]) -> Use[T]:
    """A lone statement commits by itself: the moments of a crash test lie before and after it."""

    async def marked(connection: Connection) -> T:
        failpoints.reach([verb], "before_commit")
        result = await use(connection)
        failpoints.reach([verb], "after_commit")
        return result

    return marked


async def _leave_as_it_is(_connection: Connection) -> None:
    """No session state is ever set, so none need be reset: a release costs no round trip."""
