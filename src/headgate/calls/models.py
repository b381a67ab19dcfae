"""Models as an operator handles them: listed, paused, resumed. A pause is kept in the store, so all processes obey it."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from headgate.calls.refreshing import keep_fresh
from headgate.calls.routes import Routes
from headgate.calls.status import UpstreamStatus, gate_statuses
from headgate.calls.upstream import Emit
from headgate.core import events
from headgate.core.call import check_text
from headgate.core.errors import StateConflict
from headgate.core.operator_pause import OperatorPause, pause_over
from headgate.core.ports.clock import Clock
from headgate.core.ports.records import Records
from headgate.core.record import Record, RecordWrite

logger = logging.getLogger("headgate")
COLLECTION: Final = "headgate.pauses"
TENANT: Final = "\x01headgate"
"""Nobody's: a tenant of a key or a call is printable."""
MOST_PAUSES: Final = 10_000


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One model in this process. A family has no gates of its own; those of its members are listed with them."""

    model: str
    paused: OperatorPause | None
    upstreams: tuple[UpstreamStatus, ...]


class Models:
    """`gateway.models`."""

    def __init__(
        self,
        routes: Routes,
        records: Records,
        open_store: Callable[[], Awaitable[None]],
        clock: Clock,
        emit: Emit,
    ) -> None:
        self._routes = routes
        self._records = records
        self._open_store = open_store
        self._clock = clock
        self._emit = emit
        self._refreshing = asyncio.Lock()
        self._duty: asyncio.Task[None] | None = None
        self._watching = False

    def known(self) -> list[ModelStatus]:
        """The models as far as this process knows, without a look at the store."""
        routes = {route.model: route for route in self._routes.known()}
        names = dict.fromkeys((*self._routes.names(), *routes, *self._routes.pauses))
        return [
            ModelStatus(
                model=name,
                paused=pause_over(self._routes.pauses, name),
                upstreams=tuple(gate_statuses([routes[name]])) if name in routes else (),
            )
            for name in names
        ]

    async def list(self) -> "list[ModelStatus]":
        """The configured models, and the members of families that are in use or paused."""
        await self.refresh()
        return self.known()

    async def pause(self, model: str, *, by: str) -> OperatorPause:
        """From now on nobody calls this model, `name/*` for a family: here at once, elsewhere within seconds.

        Calls that hold a slot finish. A model that is paused already stays so under its first pause.
        """
        check_text("by", by)
        self._routes.check_name(model)
        await self.refresh()
        if (pause := self._routes.pauses.get(model)) is None:
            pause = OperatorPause(model, self._clock.utc(), by)
            write = RecordWrite(collection=COLLECTION, id=model, body=msgspec.json.encode(pause))
            await self._records.put_records(TENANT, [write], now=pause.since.timestamp())
            await self.refresh()
        return pause

    async def resume(self, model: str) -> bool:
        """End a pause; False when there was none."""
        await self.refresh()
        pause = pause_over(self._routes.pauses, model)
        if pause is not None and pause.model != model:
            raise StateConflict(f"{model} is paused with all of {pause.model}; resume {pause.model}")
        if pause is None:
            self._routes.check_name(model)
        ended = await self._records.delete_record(TENANT, COLLECTION, model)
        await self.refresh()
        return ended

    async def watch(self) -> None:
        """Obey what the store says from now on. Calling it again changes nothing."""
        if self._duty is None:
            self._watching = True
            await self.refresh()
            self._duty = asyncio.create_task(
                keep_fresh(self.refresh, self._clock, "paused models"), name="headgate paused models"
            )

    async def refresh(self) -> None:
        """Look for changes now."""
        await self._open_store()
        async with self._refreshing:
            found = await self._records.list_records(TENANT, COLLECTION, limit=MOST_PAUSES)
            self._take({record.id: _read(record) for record in found})

    async def aclose(self) -> None:
        if self._duty is not None:
            self._duty.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._duty

    def _take(self, pauses: Mapping[str, OperatorPause]) -> None:
        before = self._routes.pauses
        if pauses == before:
            return
        self._routes.obey(pauses)
        # Who only looks, as a command does, has nothing to tell of it.
        level = logging.WARNING if self._watching else logging.DEBUG
        for name in before.keys() - pauses.keys():
            logger.log(level, "model %s goes on: its pause was ended", name)
            self._emit(events.ModelPauseChanged(model=name, paused=False))
        for name in pauses.keys() - before.keys():
            logger.log(level, "model %s is paused by %s; its calls are refused", name, pauses[name].by)
            self._emit(events.ModelPauseChanged(model=name, paused=True, by=pauses[name].by))


def _read(record: Record) -> OperatorPause:
    return msgspec.convert(record.body, OperatorPause)
