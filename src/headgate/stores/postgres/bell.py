"""Waking other processes: NOTIFY when there is work, LISTEN on a connection of its own. A hint, nothing more.

A lost ring costs the listener its next look, a second later; so nothing here may fail the store. Rings are sent
apart from the commits that cause them, at most two hundred a second, the last one always.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from headgate.core.errors import HeadgateError
from headgate.core.ports.clock import Clock
from headgate.stores.postgres.database import Connection, Database
from headgate.stores.postgres.troubles import FOREIGN

logger = logging.getLogger("headgate")
CHANNEL: Final = "headgate_ready"
LEAST_GAP_S: Final = 0.005
NOTIFY_S: Final = 5.0
FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 15.0
_NOTIFY: Final = f"set local synchronous_commit = off; notify {CHANNEL}"
"""Both in one transaction. A hint need not be on the disk before it is heard."""


class Bell:
    """Rings at other processes and hears theirs."""

    def __init__(self, database: Database, clock: Clock, *, listen: bool) -> None:
        self._database = database
        self._clock = clock
        self._listen = listen
        self._connection: Connection | None = None
        self._wanted = False
        self._told = False
        """That it cannot listen; once per outage is enough."""
        self._ringing: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self, heard: Callable[[], None]) -> None:
        """Listen from now on; where that cannot be, try again in the background."""
        if not self._listen:
            return
        lost = await self._connect(heard)
        self._listening = asyncio.create_task(self._stay(heard, lost), name="headgate-listen")

    def ring(self) -> None:
        self._wanted = True
        if self._ringing is None or self._ringing.done():
            self._ringing = asyncio.create_task(self._send(), name="headgate-notify")

    async def aclose(self) -> None:
        for task in (self._ringing, self._listening):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._wanted:
            # Whoever submits a job and leaves at once should be heard all the same.
            await self._notify()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _send(self) -> None:
        while self._wanted:
            self._wanted = False
            try:
                await self._notify()
            except asyncio.CancelledError:
                self._wanted = True
                raise
            await self._clock.sleep(LEAST_GAP_S)

    async def _notify(self) -> None:
        """Over the listening connection where there is one: then its own rings can be told from others'."""
        connection = self._connection
        if connection is None or connection.is_closed():
            with contextlib.suppress(HeadgateError):
                await self._database.command(_NOTIFY)
            return
        try:
            with self._clock.outside():
                await connection.execute(_NOTIFY, timeout=NOTIFY_S)
        except FOREIGN:
            # It cannot speak, so it hears nothing either: make it be replaced.
            connection.terminate()

    async def _stay(self, heard: Callable[[], None], lost: asyncio.Event | None) -> None:
        """Listen, and whenever the connection is lost, again."""
        wait_s = FIRST_WAIT_S
        while True:
            if lost is not None:
                await lost.wait()
                wait_s = FIRST_WAIT_S
            await self._clock.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
            lost = await self._connect(heard)
            if lost is not None:
                # Something may have been rung while nobody listened.
                heard()

    async def _connect(self, heard: Callable[[], None]) -> asyncio.Event | None:
        """None when it did not work; else what is set when the connection is lost."""
        lost = asyncio.Event()
        connection: Connection | None = None
        try:
            connection = await self._database.connect()
            own_pid = connection.get_server_pid()

            def hear(_connection: Any, pid: int, _channel: str, _payload: str) -> None:
                if pid != own_pid:
                    heard()

            connection.add_termination_listener(lambda _connection: lost.set())
            with self._clock.outside():
                await connection.add_listener(CHANNEL, hear)
        except FOREIGN as error:
            level = logging.DEBUG if self._told else logging.WARNING
            logger.log(level, "cannot listen for new jobs: %s. They are looked for every second.", error)
            self._told = True
            if connection is not None:
                connection.terminate()
            return None
        except BaseException:
            # Told to stop while it was about to listen.
            if connection is not None:
                connection.terminate()
            raise
        self._told = False
        self._connection = connection
        return lost
