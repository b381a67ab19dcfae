"""The PostgreSQL store put together: the pool, its bell, the verbs."""

from collections.abc import Callable

from headgate.core.errors import StoreUnavailable
from headgate.core.ports.clock import Clock
from headgate.core.ports.store import StoreHealth
from headgate.stores.listeners import Listeners
from headgate.stores.postgres.access import AccessVerbs
from headgate.stores.postgres.base import SQL
from headgate.stores.postgres.batches import BatchVerbs
from headgate.stores.postgres.bell import Bell
from headgate.stores.postgres.claims import ClaimVerbs
from headgate.stores.postgres.database import Database
from headgate.stores.postgres.jobs import JobVerbs
from headgate.stores.postgres.keys import KeyVerbs
from headgate.stores.postgres.records import RecordVerbs
from headgate.stores.postgres.schema import migrate
from headgate.stores.postgres.secrets import SecretVerbs
from headgate.stores.postgres.troubles import while_opening
from headgate.stores.postgres.upkeep import UpkeepVerbs
from headgate.stores.postgres.url import read_url


class PostgresStore(
    JobVerbs, BatchVerbs, ClaimVerbs, UpkeepVerbs, KeyVerbs, AccessVerbs, RecordVerbs, SecretVerbs
):
    """`core.ports.store.Store` on a PostgreSQL that many nodes share."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        new_id: Callable[[], str],  # noqa: ARG002 - every store is made alike; this one needs no name of its own
    ) -> None:
        address = read_url(url)
        self.name = f"postgres {address.shown}"
        self._clock = clock
        self.clock_ahead_s = 0.0
        self._listeners = Listeners(self.name)
        self._database = Database(
            address,
            name=self.name,
            clock=clock,
            on_trouble=self._listeners.trouble,
            on_trip=self._listeners.trip,
        )
        self._bell = Bell(self._database, clock, listen=address.listen)
        self._prepare_jobs()
        self._prepare_claims()

    @property
    def health(self) -> StoreHealth:
        return self._listeners.health

    @property
    def files_removed(self) -> bool:
        return False

    async def open(self) -> None:
        try:
            await self._database.open()
            await migrate(self._database)
            self.secret = (await self._database.read(SQL.read_secret))[0][0]
            await self._look_at_the_clock()
            await self._bell.start(self._listeners.ring)
        except StoreUnavailable as error:
            await self._database.aclose()
            raise while_opening(error) from error.__cause__
        except BaseException:
            await self._database.aclose()
            raise

    async def aclose(self) -> None:
        for part in (self._plain_calls, self._keyed_calls, self._settlements):
            await part.aclose()
        await self._bell.aclose()
        await self._sweeper.aclose()
        await self._database.aclose()

    def on_ready(self, ring: Callable[[], None]) -> Callable[[], None]:
        return self._listeners.on_ready(ring)

    def on_trip(self, tell: Callable[[float], None]) -> Callable[[], None]:
        return self._listeners.on_trip(tell)

    def on_health(self, tell: Callable[[StoreHealth, str], None]) -> Callable[[], None]:
        return self._listeners.on_health(tell)

    def _ring(self) -> None:
        self._listeners.ring()
        self._bell.ring()
