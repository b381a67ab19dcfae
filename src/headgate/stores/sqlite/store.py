"""The SQLite store put together: one file, its writer, its readers, its bell."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import apsw

from headgate.core.errors import HeadgateError, SettingsError, StoreUnavailable
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import StoreHealth
from headgate.machine.sqlite.place import Place
from headgate.machine.sqlite.troubles import FilesRemoved
from headgate.stores.listeners import Listeners
from headgate.stores.sqlite.access import AccessVerbs
from headgate.stores.sqlite.base import SQL, value
from headgate.stores.sqlite.batches import BatchVerbs
from headgate.stores.sqlite.claims import ClaimVerbs
from headgate.stores.sqlite.connection import NotOurs, connect, migrate
from headgate.stores.sqlite.doorbell import Doorbell
from headgate.stores.sqlite.inline import InlineWriter
from headgate.stores.sqlite.jobs import JobVerbs
from headgate.stores.sqlite.keys import KeyVerbs
from headgate.stores.sqlite.reader import Reader
from headgate.stores.sqlite.records import RecordVerbs
from headgate.stores.sqlite.secrets import SecretVerbs
from headgate.stores.sqlite.upkeep import UpkeepVerbs
from headgate.stores.sqlite.writer import Writer


class SqliteStore(
    JobVerbs, BatchVerbs, ClaimVerbs, UpkeepVerbs, KeyVerbs, AccessVerbs, RecordVerbs, SecretVerbs
):
    """`core.ports.store.Store` in one file. Several processes may open it."""

    clock_ahead_s = None

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        new_id: Callable[[], str],
        vfs: str | None = None,
        lasting: bool = True,
    ) -> None:
        """With `lasting=False` nobody waits for the disk or for a thread: for a file that is thrown away."""
        self._place = Place(path)
        self.name = self._place.name
        self._vfs = vfs
        self._lasting = lasting
        self._listeners = Listeners(self.name)
        self._doorbell = Doorbell(self._place.path.parent / "nodes", new_id())
        self._writer = (Writer if lasting else InlineWriter)(
            self._connect, place=self._place, clock=clock, on_trouble=self._listeners.trouble
        )
        self._reader = Reader(self._connect, place=self._place, clock=clock)

    @property
    def health(self) -> StoreHealth:
        return self._listeners.health

    @property
    def files_removed(self) -> bool:
        return self._place.lost

    async def open(self) -> None:
        """In a thread: another process may keep the file locked for a while."""
        connection = await asyncio.get_running_loop().run_in_executor(None, self._open)
        self._writer.start(connection)

    def _open(self) -> apsw.Connection:
        try:
            self._place.make()
            connection = self._connect()
            migrate(connection)
            self.secret = value(connection, SQL.read_secret)
        except (OSError, SettingsError, apsw.Error, NotOurs) as error:
            raise self._while_opening(error) from error
        return connection

    def _while_opening(self, error: Exception) -> HeadgateError:
        """What only the operator can mend is told as such."""
        match self._place.translated(error):
            case StoreUnavailable(waiting_helps=True) as trouble:
                return trouble
            case StoreUnavailable() as lasting:
                return SettingsError(str(lasting))
            case apsw.Error() | NotOurs():
                advice = "set another data_dir, or move the file away"
                return SettingsError(f"{self.name} is another program's database; {advice} ({error})")
            case _:
                return SettingsError(f"{self.name}: {error}")

    async def aclose(self) -> None:
        self._doorbell.close()
        await self._writer.aclose()
        await self._reader.aclose()

    def on_ready(self, ring: Callable[[], None]) -> Callable[[], None]:
        # Not before: who never waits for jobs leaves nothing in the folder.
        self._doorbell.listen(self._listeners.ring)
        return self._listeners.on_ready(ring)

    def on_trip(self, tell: Callable[[float], None]) -> Callable[[], None]:
        return self._listeners.on_trip(tell)

    def on_health(self, tell: Callable[[StoreHealth, str], None]) -> Callable[[], None]:
        return self._listeners.on_health(tell)

    def _connect(self) -> apsw.Connection:
        self._place.check()
        connection = connect(self._place.path, vfs=self._vfs, lasting=self._lasting)
        try:
            self._place.check(connection)
        except FilesRemoved:
            self._place.close(connection)
            raise
        return connection

    def _ring(self) -> None:
        self._listeners.ring()
        self._doorbell.ring()
