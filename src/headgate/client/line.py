"""The line to one gateway: requests out, answers in, and the only owner of a call's retries.

Knows HTTP, deadlines and keys; knows nothing of chats, jobs or batches.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from headgate.client.address import read_address
from headgate.client.answers import Answer, Setback, read_setback
from headgate.client.errors import GatewayUnreachable
from headgate.core.errors import DeadlineExceeded, SettingsError
from headgate.core.failures import Failure, FailureKind
from headgate.core.ports.clock import Chance, Clock
from headgate.core.retry import RetryPolicy, Wait
from headgate.transport import Endpoint, Limits, Response, Transport, TransportError
from headgate.transport.errors import ConnectFailed, ConnectTimedOut, HeaderRefused, TotalTimedOut, UrlRefused
from headgate.transport.headers import RawHeader

T = TypeVar("T")
ONCE: Final = RetryPolicy(max_attempts=1)
"""For callers who own the retries themselves."""
_JSON: Final = (b"content-type", b"application/json")
_NOTHING_SENT: Final = (ConnectFailed, ConnectTimedOut)
_CONNECT_S: Final = 5.0


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One user action. Its key and its bytes are made once and stay the same through all tries."""

    method: str
    path: str
    body: bytes = b""
    key: str | None = None
    headers: tuple[RawHeader, ...] = ()


class Line:
    """Asks one gateway. Closing it is its owner's business."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        retry: RetryPolicy,
        timeout_s: float,
        transport: Transport,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self.url = read_address(url)
        self.retry = retry
        self.timeout_s = timeout_s
        self.clock = clock
        self._transport = transport
        self._chance = chance
        self._static = () if api_key is None else ((b"authorization", b"Bearer " + api_key.encode()),)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._endpoint("GET", "/")  # A key that cannot be used is told now, not by the first call.

    def stay_on_one_loop(self) -> None:
        """Connections wake only those who wait on the loop that opened them."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("this client belongs to another event loop; open one in each")

    async def ask(
        self, call: Call, *, timeout_s: float | None = None, retry: RetryPolicy | None = None
    ) -> Answer:
        """The whole answer, a success. Everything else is raised, after all tries that help."""

        async def attempt(left_s: float) -> Answer:
            with self.clock.outside(), await self._send(call, left_s) as response:
                answer = Answer(call.path, response.status, response.headers, await response.read())
            if not _succeeded(answer.status):
                raise read_setback(answer, self.url, now=self.clock.utc())
            return answer

        return await self._persist(attempt, timeout_s, retry)

    async def open(self, call: Call, *, timeout_s: float | None = None) -> Response:
        """An answer whose success is certain and whose body is still to come. The caller closes it."""

        async def attempt(left_s: float) -> Response:
            response = await self._send(call, left_s)
            if _succeeded(response.status):
                return response
            with response:
                answer = Answer(call.path, response.status, response.headers, await response.read())
            raise read_setback(answer, self.url, now=self.clock.utc())

        return await self._persist(attempt, timeout_s, None)

    async def _persist(
        self,
        attempt: Callable[[float], Awaitable[T]],
        timeout_s: float | None,
        retry: RetryPolicy | None,
    ) -> T:
        """One deadline over all tries and waits."""
        self.stay_on_one_loop()
        policy = retry or self.retry
        ends_at = self.clock.now() + (self.timeout_s if timeout_s is None else timeout_s)
        number = 0
        while True:
            number += 1
            setback = await self._try(attempt, ends_at - self.clock.now())
            if not isinstance(setback, Setback):
                return setback
            decision = policy.decide(
                setback.failure,
                attempt=number,
                remaining_s=ends_at - self.clock.now(),
                chance=self._chance(),
            )
            if not isinstance(decision, Wait):
                raise setback.error from setback.__cause__
            await self.clock.sleep(decision.seconds)

    async def _try(self, attempt: Callable[[float], Awaitable[T]], left_s: float) -> T | Setback:
        if left_s <= 0:
            raise DeadlineExceeded(f"there was no time left to ask {self.url}")
        try:
            return await attempt(left_s)
        except Setback as setback:
            return setback
        except TransportError as error:
            trouble = self.setback_of(error)
            trouble.__cause__ = error
            return trouble

    async def _send(self, call: Call, left_s: float) -> Response:
        headers: list[RawHeader] = [*call.headers, (b"x-headgate-timeout", b"%.3f" % left_s)]
        if call.body and not any(name == b"content-type" for name, _ in call.headers):
            headers.append(_JSON)
        if call.key is not None:
            headers.append((b"idempotency-key", call.key.encode()))
        limits = Limits(connect_s=min(_CONNECT_S, left_s), idle_s=None, total_s=left_s)
        endpoint = self._endpoint(call.method, call.path)
        return await self._transport.send(endpoint, call.body, headers=headers, limits=limits)

    def _endpoint(self, method: str, path: str) -> Endpoint:
        try:
            return Endpoint(self.url + path, method=method, headers=self._static)
        except (UrlRefused, HeaderRefused) as error:
            raise SettingsError(f"the gateway at {self.url} cannot be asked: {error}") from error

    def setback_of(self, error: TransportError) -> Setback:
        """Trouble on the wire. It is never known whether a request that went out was carried out: that is what keys are for."""
        if isinstance(error, TotalTimedOut):
            return Setback(
                DeadlineExceeded(f"{self.url} did not answer in time"), Failure(kind=FailureKind.EXPIRED)
            )
        sent = not isinstance(error, _NOTHING_SENT)
        if error.failure.kind is FailureKind.MISCONFIGURED:
            return Setback(SettingsError(str(error)), error.failure)
        return Setback(
            GatewayUnreachable(f"{error}. Is headgate running at {self.url}?", sent=sent), error.failure
        )


def _succeeded(status: int) -> bool:
    return 200 <= status < 300
