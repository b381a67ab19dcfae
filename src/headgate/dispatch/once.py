"""Direct calls under an idempotency key: reserved before the work, told again after it, shared while it lasts.

A key that is being worked on here is shared in memory; one that another process works on is asked after until
the caller's time is up. A failed outcome frees the key. If a process dies after sending, the key's next caller
runs the call again, or is refused: the operator decides (`idempotency.unknown`).
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Final, assert_never

import msgspec

from headgate.core.errors import DeadlineExceeded, KeyInProgress, KeyMismatch, StoreUnavailable
from headgate.core.idempotency import (
    IdempotencyRules,
    InProgress,
    Mismatch,
    Replay,
    Run,
    SameJob,
    Verdict,
    check_key,
)
from headgate.core.job import KeyClaim
from headgate.core.messages import Reply
from headgate.core.ports.clock import Clock
from headgate.core.ports.keys import Keys
from headgate.dispatch.work import Announce

logger = logging.getLogger("headgate")
ASK_AGAIN_S: Final = 0.25
KEEP_TRYING_S: Final = (0.2, 1.0, 5.0)
Ask = Callable[[Announce], Awaitable[Reply]]
Place = tuple[str, str, str]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Reply).decode


class _Shared:
    """A call in flight and those who wait for it. It lives while one of them does."""

    __slots__ = ("claim", "sharers", "task")

    def __init__(self, claim: KeyClaim, task: "asyncio.Task[Reply]") -> None:
        self.claim = claim
        self.task = task
        self.sharers = 0

    async def wait(self) -> Reply:
        self.sharers += 1
        try:
            return await asyncio.shield(self.task)
        finally:
            self.sharers -= 1
            if not self.sharers:
                self.task.cancel()


class Once:
    """The same key, the same answer, one recorded effect."""

    def __init__(self, keys: Keys, rules: IdempotencyRules, node: Callable[[], str], clock: Clock) -> None:
        self._keys = keys
        self._rules = rules
        self._node = node
        self._clock = clock
        self._running: dict[Place, _Shared] = {}

    async def reply(
        self, tenant: str, endpoint: str, key: str, body: bytes, ask: Ask, *, deadline: float
    ) -> Reply:
        """What `ask` answers, or answered before under this key."""
        claim = self._claim(endpoint, key, body)
        place = (tenant, endpoint, key)
        while True:
            if (shared := self._running.get(place)) is not None:
                if shared.claim.request_hash != claim.request_hash:
                    raise KeyMismatch(key)
                if (reply := await self._share(shared, deadline)) is not None:
                    return reply
                continue
            verdict = await self._keys.reserve(
                tenant, claim, node=self._node(), unknown=self._rules.unknown, now=self._now()
            )
            if isinstance(verdict, Run):
                return await self._lead(place, claim, verdict, ask)
            if (reply := self._known(key, verdict)) is not None:
                return reply
            if self._clock.now() + ASK_AGAIN_S >= deadline:
                raise _still_running(key)
            await self._clock.sleep(ASK_AGAIN_S)

    async def _lead(self, place: Place, claim: KeyClaim, run: Run, ask: Ask) -> Reply:
        if run.rerun:
            logger.warning("idempotency key %r runs again: its process died after sending", claim.key[:100])
        task = asyncio.get_running_loop().create_task(self._work(place[0], claim, run.lease, ask))
        shared = self._running[place] = _Shared(claim, task)
        # Gone from the table before anybody hears how it ended: who comes then asks the store.
        task.add_done_callback(lambda _task: self._running.pop(place, None))
        return await shared.wait()

    async def _share(self, shared: _Shared, deadline: float) -> Reply | None:
        """The call's answer; None when it ran out of its own time and this caller has some left."""
        try:
            async with asyncio.timeout_at(deadline):
                return msgspec.structs.replace(await shared.wait(), replayed=True)
        except DeadlineExceeded:
            if self._clock.now() >= deadline:
                raise
            return None
        except TimeoutError:
            raise _still_running(shared.claim.key) from None

    async def _work(self, tenant: str, claim: KeyClaim, lease: int, ask: Ask) -> Reply:
        announced = False

        async def announce() -> None:
            """Written before the first byte goes out: after a crash, `reserved` proves that none did."""
            nonlocal announced
            if not announced and not await self._keys.mark_sent(tenant, claim, lease):
                raise _still_running(claim.key)
            announced = True

        try:
            reply = await ask(announce)
        except BaseException:
            await self._free(tenant, claim, lease)
            raise
        return await self._finish(tenant, claim, lease, reply)

    async def _finish(self, tenant: str, claim: KeyClaim, lease: int, reply: Reply) -> Reply:
        body = _encode(reply)
        for rest_s in (*KEEP_TRYING_S, None):
            try:
                if await self._keys.finish(tenant, claim, lease, status=200, body=body):
                    return reply
                # We were thought dead, and somebody else has done it: their answer is the recorded one.
                verdict = await self._keys.reserve(
                    tenant, claim, node=self._node(), unknown=self._rules.unknown, now=self._now()
                )
                return self._known(claim.key, verdict) or reply
            except StoreUnavailable:
                if rest_s is None:
                    logger.exception("the answer under idempotency key %r is not stored", claim.key[:100])
                    break
                await self._clock.sleep(rest_s)
        return reply

    async def _free(self, tenant: str, claim: KeyClaim, lease: int) -> None:
        try:
            await self._keys.free(tenant, claim, lease)
        except StoreUnavailable as error:
            logger.warning("idempotency key %r could not be freed: %s", claim.key[:100], error)

    def _known(self, key: str, verdict: Verdict) -> Reply | None:
        """The stored answer; None while somebody is at it."""
        match verdict:
            case Replay(body=body):
                return msgspec.structs.replace(_decode(body), replayed=True)
            case Mismatch():
                raise KeyMismatch(key)
            case InProgress(unknown=True):
                raise KeyInProgress(
                    f"idempotency key {key[:100]!r}: its process died after sending, and idempotency.unknown is"
                    " `refuse`. Use a new key if it may run again.",
                    retry_after_s=60.0,
                )
            case InProgress() | SameJob() | Run():
                return None
            case _:
                assert_never(verdict)

    def _claim(self, endpoint: str, key: str, body: bytes) -> KeyClaim:
        return KeyClaim(
            endpoint=endpoint,
            key=check_key(key),
            request_hash=hmac.digest(self._keys.secret, body, hashlib.sha256),
            expires_at=self._now() + self._rules.retention_s,
        )

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def _still_running(key: str) -> KeyInProgress:
    return KeyInProgress(
        f"another request with idempotency key {key[:100]!r} is still running; ask again later",
        retry_after_s=1.0,
    )
