"""Direct calls under an idempotency key: reserved before the work, told again after it, shared while it lasts.

A key that is being worked on here is shared in memory; one that another process works on is asked after until
the caller's time is up. A failed outcome frees the key. If a process dies after sending, the key's next caller
runs the call again, or is refused: the operator decides (`idempotency.unknown`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, assert_never

import msgspec

from headgate.core.errors import (
    DeadlineExceeded,
    HeadgateError,
    KeyInProgress,
    KeyMismatch,
    StateConflict,
    StoreUnavailable,
)
from headgate.core.events import Event, KeyUsed
from headgate.core.idempotency import (
    IdempotencyRules,
    InProgress,
    KeyClaim,
    KeyOutcome,
    Mismatch,
    Replay,
    Run,
    SameJob,
    Verdict,
    key_claim,
)
from headgate.core.ports.clock import Clock
from headgate.core.ports.keys import Keys
from headgate.dispatch.call import Announce
from headgate.machine.clock import TIMER_SLACK_S

logger = logging.getLogger("headgate")
ASK_AGAIN_S: Final = 0.25
KEEP_TRYING_S: Final = (0.2, 1.0, 5.0)
Reply = TypeVar("Reply", bound=msgspec.Struct)
"""Has a field `replayed`."""
Place = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Asking(Generic[Reply]):
    """A call that may have been made before: how to make it, and how its reply is kept."""

    ask: Callable[[Announce], Awaitable[Reply]]
    encode: Callable[[Reply], bytes]
    decode: Callable[[bytes], Reply]


class _Shared:
    """A call in flight and those who wait for it. It lives while one of them does."""

    __slots__ = ("answered", "claim", "sharers", "task")

    def __init__(self, claim: KeyClaim, task: "asyncio.Task[Any]") -> None:
        self.claim = claim
        self.task = task
        self.sharers = 0
        self.answered = False
        """It is paid for, and only has to be stored: whoever leaves now, that is seen through."""

    async def wait(self) -> Any:
        """The answer; None when there is none to share, and the caller had better ask anew."""
        self.sharers += 1
        try:
            await asyncio.wait({self.task})
        finally:
            self.sharers -= 1
            if not self.sharers and not self.answered:
                self.task.cancel()
        # Cancelled by others who have all left meanwhile: that is not our end.
        return None if self.task.cancelled() else self.task.result()


class Once:
    """The same key, the same answer, one recorded effect."""

    def __init__(
        self,
        keys: Keys,
        rules: IdempotencyRules,
        node: Callable[[], str],
        clock: Clock,
        emit: Callable[[Event], None],
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._node = node
        self._clock = clock
        self._emit = emit
        self._running: dict[Place, _Shared] = {}
        """Whatever this node holds in the store stands here; a key that does not is nobody's any more."""

    async def reply(
        self, tenant: str, endpoint: str, key: str, body: bytes, asking: Asking[Reply], *, deadline: float
    ) -> Reply:
        """What is answered, or was answered before under this key."""
        claim = self._claim(endpoint, key, body)
        try:
            reply, outcome = await self._found((tenant, endpoint, key), claim, asking, deadline)
        except HeadgateError as error:
            self._emit(KeyUsed(endpoint=endpoint, outcome=_outcome(error)))
            raise
        self._emit(KeyUsed(endpoint=endpoint, outcome=outcome))
        return reply

    async def _found(
        self, place: Place, claim: KeyClaim, asking: Asking[Reply], deadline: float
    ) -> tuple[Reply, KeyOutcome]:
        while True:
            shared = self._running.get(place)
            if shared is None:
                reply: Reply | None = await self._lead(place, claim, asking, deadline).wait()
                told_again = getattr(reply, "replayed", False)
                outcome = KeyOutcome.REPLAYED if told_again else KeyOutcome.RAN
            elif shared.claim.request_hash != claim.request_hash:
                raise KeyMismatch(claim.key)
            else:
                reply, outcome = await self._share(shared, deadline), KeyOutcome.SHARED
            if reply is not None:
                return reply, outcome

    def _lead(self, place: Place, claim: KeyClaim, asking: Asking[Reply], deadline: float) -> _Shared:
        """Known here before the store is asked, so that nothing this node holds is ever forgotten."""
        task = asyncio.get_running_loop().create_task(self._work(place, claim, asking, deadline))
        shared = self._running[place] = _Shared(claim, task)
        # Gone from the table before anybody hears how it ended: who comes then asks the store.
        task.add_done_callback(lambda task: self._ended(place, task))
        return shared

    def _ended(self, place: Place, task: "asyncio.Task[Any]") -> None:
        self._running.pop(place, None)
        if not task.cancelled():
            task.exception()  # Those who wait hear of it; there may be none of them left.

    async def _share(self, shared: _Shared, deadline: float) -> Any:
        """The call's answer; None when it ran out of its own time and this caller has some left."""
        try:
            async with asyncio.timeout_at(deadline):
                reply = await shared.wait()
        except (DeadlineExceeded, KeyInProgress):
            if self._clock.now() + TIMER_SLACK_S >= deadline:
                raise
            return None
        except TimeoutError:
            raise _still_running(shared.claim.key) from None
        return None if reply is None else msgspec.structs.replace(reply, replayed=True)

    async def _work(
        self, place: Place, claim: KeyClaim, asking: Asking[Reply], deadline: float
    ) -> Reply | None:
        while True:
            verdict = await self._reserve(place[0], claim)
            if isinstance(verdict, Run):
                return await self._run(place, claim, verdict, asking)
            if (reply := self._known(claim.key, verdict, asking)) is not None:
                return reply
            if self._clock.now() + ASK_AGAIN_S >= deadline:
                raise _still_running(claim.key)
            await self._clock.sleep(ASK_AGAIN_S)

    async def _run(self, place: Place, claim: KeyClaim, run: Run, asking: Asking[Reply]) -> Reply:
        tenant = place[0]
        if run.rerun:
            logger.warning("idempotency key %r runs again: its process died after sending", claim.key[:100])

        async def announce() -> None:
            """Written before the first byte goes out: after a crash, `reserved` proves that none did."""
            if not await self._keys.mark_sent(tenant, claim, run.lease):
                raise _still_running(claim.key)

        try:
            reply = await asking.ask(announce)
        except BaseException:
            await self._free(tenant, claim, run.lease)
            raise
        self._running[place].answered = True
        return await self._finish(tenant, claim, run.lease, reply, asking)

    async def _finish(
        self, tenant: str, claim: KeyClaim, lease: int, reply: Reply, asking: Asking[Reply]
    ) -> Reply:
        """Store the answer. Whatever comes between, the caller gets one: the recorded one if there is any."""
        body = asking.encode(reply)
        for rest_s in (*KEEP_TRYING_S, None):
            try:
                while not await self._keys.finish(tenant, claim, lease, status=200, body=body):
                    # We were thought dead, and somebody else took the key over.
                    verdict = await self._reserve(tenant, claim)
                    if not isinstance(verdict, Run):
                        return self._known(claim.key, verdict, asking) or reply
                    lease = verdict.lease
            except StoreUnavailable:
                if rest_s is None:
                    logger.exception("the answer under idempotency key %r is not stored", claim.key[:100])
                    break
                await self._clock.sleep(rest_s)
            else:
                break
        return reply

    async def _reserve(self, tenant: str, claim: KeyClaim) -> Verdict:
        return await self._keys.reserve(
            tenant, claim, node=self._node(), unknown=self._rules.unknown, now=self._now()
        )

    async def _free(self, tenant: str, claim: KeyClaim, lease: int) -> None:
        try:
            await self._keys.free(tenant, claim, lease)
        except StoreUnavailable as error:
            logger.warning("idempotency key %r could not be freed: %s", claim.key[:100], error)

    def _known(self, key: str, verdict: Verdict, asking: Asking[Reply]) -> Reply | None:
        """The stored answer; None while somebody is at it."""
        match verdict:
            case Replay(body=body):
                return msgspec.structs.replace(asking.decode(body), replayed=True)
            case Mismatch():
                raise KeyMismatch(key)
            case InProgress(unknown=True):
                raise StateConflict(
                    f"idempotency key {key[:100]!r}: its process died after sending, and idempotency.unknown is"
                    " `refuse`. Use a new key if it may run again."
                )
            case InProgress() | SameJob() | Run():
                return None
            case _:
                assert_never(verdict)

    def _claim(self, endpoint: str, key: str, body: bytes) -> KeyClaim:
        expires_at = self._now() + self._rules.retention_s
        return key_claim(key, body, secret=self._keys.secret, endpoint=endpoint, expires_at=expires_at)

    def _now(self) -> float:
        return self._clock.utc().timestamp()


def _outcome(error: HeadgateError) -> KeyOutcome:
    match error:
        case KeyMismatch():
            return KeyOutcome.MISMATCH
        case KeyInProgress() | StateConflict():
            return KeyOutcome.IN_PROGRESS
        case _:
            return KeyOutcome.FAILED


def _still_running(key: str) -> KeyInProgress:
    return KeyInProgress(
        f"another request with idempotency key {key[:100]!r} is still running; ask again later",
        retry_after_s=1.0,
    )
