"""From a host's name to its addresses. Upstreams' names and strangers' names have threads of their own.

The system's resolver blocks, for as long as a name server likes, and cannot be stopped. So nobody waits for the lookups
of others: upstreams are looked up apart from what tenants name, and each tenant apart from the others.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Generic, NamedTuple, TypeVar

from headgate.transport.errors import ConnectFailed

logger = logging.getLogger("headgate")
T = TypeVar("T")
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host name, in the order in which they are tried."""
PATIENCE_S: Final = 1.0
"""How long a lookup may take before the addresses of the last one are used."""
MAX_LOOKUPS_PER_TENANT: Final = 8


class DaemonThreads(Generic[T]):
    """At most `max_threads`, started when needed. Work that was cancelled while it waited is not begun.

    They keep no process from its end, as the threads of a `ThreadPoolExecutor` do.
    """

    def __init__(self, name: str, *, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[], T], Future[T]]] = deque()
        self._threads = 0

    @property
    def idle(self) -> bool:
        return self._threads == 0

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._threads < self._max_threads:
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                self._threads += 1
            self._waiting.append((work, future))
        return future

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            work, future = taken
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - carried to whoever waits for it
                future.set_exception(error)

    def _next(self) -> tuple[Callable[[], T], Future[T]] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None


class _Found(NamedTuple):
    addresses: Sequence[str]
    reason: str
    """Why there are none."""


class _Lookup(NamedTuple):
    found: "Future[_Found]"
    began_at: float


class UpstreamNames:
    """A name is looked up once at a time, for all who need it. Its last good addresses bridge a failing name server."""

    def __init__(self) -> None:
        self._under_way: dict[str, _Lookup] = {}
        self._known: dict[str, Sequence[str]] = {}
        self._bridged: set[str] = set()
        """The hosts whose last addresses are used: the log says so once."""

    async def __call__(self, host: str, port: int) -> Sequence[str]:  # noqa: ARG002 - all ports share their addresses
        if (written := _written(host)) is not None:
            return written
        lookup, known = self._lookup(host), self._known.get(host)
        patience_s = None if known is None else max(0.0, lookup.began_at + PATIENCE_S - time.monotonic())
        answer = asyncio.wrap_future(lookup.found)
        try:
            await asyncio.wait([answer], timeout=patience_s)
        finally:
            # The lookup itself goes on, for the others.
            answer.cancel()
        found = lookup.found.result() if lookup.found.done() else _Found((), "no answer yet")
        if found.addresses:
            if host in self._bridged:
                self._bridged.discard(host)
                logger.info("the name %s can be looked up again", host)
            return found.addresses
        if known is None:
            raise _not_found(host, found.reason)
        if host not in self._bridged:
            self._bridged.add(host)
            logger.warning(
                "the name %s could not be looked up (%s): its last known addresses stay in use (%s)",
                host,
                found.reason,
                ", ".join(known),
            )
        return known

    def _lookup(self, host: str) -> _Lookup:
        lookup = self._under_way.get(host)
        if lookup is None or lookup.found.done():
            lookup = _Lookup(Future(), time.monotonic())
            # From here on no caller's cancellation can end it.
            lookup.found.set_running_or_notify_cancel()
            threading.Thread(
                target=self._look_up, args=(host, lookup.found), name="headgate upstream name", daemon=True
            ).start()
            self._under_way[host] = lookup
        return lookup

    def _look_up(self, host: str, result: "Future[_Found]") -> None:
        """In a thread. An answer that is too late for its callers is one for the next."""
        found = _look_up(host)
        if found.addresses:
            self._known[host] = found.addresses
        result.set_result(found)


class StrangersNames:
    """Names in the addresses that tenants give. Nothing is remembered: each use is checked against a new answer."""

    def __init__(self) -> None:
        self._by_tenant: dict[str | None, DaemonThreads[_Found]] = {}

    def of(self, tenant: str | None) -> Resolve:
        """For the addresses of this tenant; None: the operator's own."""

        async def resolve(host: str, port: int) -> Sequence[str]:  # noqa: ARG001 - all ports share their addresses
            return _written(host) or await self._resolve(host, tenant)

        return resolve

    async def _resolve(self, host: str, tenant: str | None) -> Sequence[str]:
        new: DaemonThreads[_Found] = DaemonThreads(
            "headgate stranger's name", max_threads=MAX_LOOKUPS_PER_TENANT
        )
        threads = self._by_tenant.setdefault(tenant, new)
        try:
            found = await asyncio.wrap_future(threads.submit(lambda: _look_up(host)))
        finally:
            if threads.idle and self._by_tenant.get(tenant) is threads:
                del self._by_tenant[tenant]
        if not found.addresses:
            raise _not_found(host, found.reason)
        return found.addresses


STRANGERS: Final = StrangersNames()
"""One for the process, as its threads and its name servers are."""


def _written(host: str) -> Sequence[str] | None:
    """An address that is written as such needs no asking."""
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    return None


def _look_up(host: str) -> _Found:
    """Blocks. A failure is a result here: it must not get lost with a caller who has left."""
    try:
        entries: list[Any] = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name that can be looked up"
        return _Found((), reason or type(error).__name__)
    return _Found(list(dict.fromkeys(str(entry[4][0]) for entry in entries)), "it has no address")


def _not_found(host: str, reason: str) -> ConnectFailed:
    return ConnectFailed(f"the name {host} could not be looked up: {reason}")
