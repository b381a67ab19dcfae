"""Direct calls under an idempotency key: reserved before the work, answered again after it, shared while it lasts.

A key that is being worked on here is shared in memory; for one that another process works on, the store is asked
again until the caller's time is up. The write that the store accepts decides which answer counts: a process that was
overtaken returns the recorded answer. A failed outcome frees the key. If a process dies after sending, the key's next
caller runs the call again, or is refused: the operator decides (`idempotency.unknown`).

What the process holds in the store, and what happens while the store is away, is in `held_keys.py`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, assert_never

import msgspec

from headgate.calls.call import Announce
from headgate.calls.held_keys import Answer, HeldKeys, Holder, Place
from headgate.core.errors import (
    DeadlineExceeded,
    HeadgateError,
    KeyInProgress,
    KeyMismatch,
    StateConflict,
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
from headgate.machine.clock import TIMER_SLACK_S
from headgate.machine.disk import Quota

logger = logging.getLogger("headgate")
ASK_AGAIN_S: Final = 0.25
CLOSE_S: Final = 10.0
Reply = TypeVar("Reply", bound=msgspec.Struct)
"""Has a field `replayed`."""


@dataclass(frozen=True, slots=True)
class Asking(Generic[Reply]):
    """A call that may have been made before: how to make it, and how its reply is kept."""

    ask: Callable[[Announce], Awaitable[Reply]]
    encode: Callable[[Reply], bytes]
    decode: Callable[[bytes], Reply]


class _Work:
    """A call in flight and its callers. It lives while one of them waits, and until a write in progress has ended."""

    def __init__(self, place: Place, claim: KeyClaim, deadline: float) -> None:
        self.place = place
        self.claim = claim
        self.deadline = deadline
        self.task: asyncio.Task[Any]
        self.waiting = 0
        self.writing = False
        self._returned = False

    @contextmanager
    def seen_through(self) -> Iterator[None]:
        """A write to the store that is not cancelled: its outcome would be unknown."""
        self.writing = True
        try:
            yield
        finally:
            self.writing = False

    async def wait(self) -> Any:
        """The reply; for all callers but one it is a replay. None when there is none: the caller starts again."""
        self.waiting += 1
        try:
            await asyncio.wait({self.task})
        finally:
            self.waiting -= 1
            if not self.waiting and not self.writing:
                self.task.cancel()
        # Cancelled by callers who have all left meanwhile: that does not end this one.
        reply = None if self.task.cancelled() else self.task.result()
        if reply is None or not self._returned:
            self._returned = True
            return reply
        return msgspec.structs.replace(reply, replayed=True)


class Once:
    """The same key, the same answer, one recorded effect."""

    def __init__(
        self,
        keys: Keys,
        rules: IdempotencyRules,
        node: Holder,
        clock: Clock,
        emit: Callable[[Event], None],
        quota: Quota,
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock
        self._emit = emit
        self._quota = quota
        self._running: dict[Place, _Work] = {}
        self._held = HeldKeys(keys, rules, node, clock, self._running)

    async def reply(
        self, tenant: str, endpoint: str, key: str, body: bytes, asking: Asking[Reply], *, deadline: float
    ) -> Reply:
        """The reply to this call, or the one that was recorded before under this key."""
        claim = self._claim(endpoint, key, body)
        try:
            reply, outcome = await self._found((tenant, endpoint, key), claim, asking, deadline)
        except HeadgateError as error:
            self._emit(KeyUsed(endpoint=endpoint, outcome=_outcome(error)))
            raise
        self._emit(KeyUsed(endpoint=endpoint, outcome=outcome))
        return reply

    async def aclose(self) -> None:
        """Before the node leaves: let writes end, and store the answers that were kept."""
        writing = {work.task for work in self._running.values() if work.writing}
        if writing:
            await asyncio.wait(writing, timeout=CLOSE_S)
        await self._held.aclose()

    # ---- Callers ------------------------------------------------------------------------------------------

    async def _found(
        self, place: Place, claim: KeyClaim, asking: Asking[Reply], deadline: float
    ) -> tuple[Reply, KeyOutcome]:
        while True:
            work = self._running.get(place)
            if work is None:
                reply: Reply | None = await self._begin(place, claim, asking, deadline).wait()
                outcome = KeyOutcome.REPLAYED
            elif work.claim.request_hash != claim.request_hash:
                raise KeyMismatch(claim.key)
            else:
                reply, outcome = await self._share(work, deadline), KeyOutcome.SHARED
            if reply is not None:
                return reply, outcome if getattr(reply, "replayed", False) else KeyOutcome.RAN

    def _begin(self, place: Place, claim: KeyClaim, asking: Asking[Reply], deadline: float) -> _Work:
        """Known here before the store is asked, so that no key is taken for a forgotten one."""
        work = self._running[place] = _Work(place, claim, deadline)
        work.task = asyncio.get_running_loop().create_task(self._run(work, asking))
        # Removed before its callers wake up: a new request then asks the store.
        work.task.add_done_callback(lambda task: self._ended(place, task))
        return work

    def _ended(self, place: Place, task: "asyncio.Task[Any]") -> None:
        self._running.pop(place, None)
        if not task.cancelled():
            task.exception()  # Its callers get it; there may be none of them left.

    async def _share(self, work: _Work, deadline: float) -> Any:
        """The call's reply; None when it ran out of its own time and this caller has some left."""
        try:
            async with asyncio.timeout_at(deadline):
                return await work.wait()
        except (DeadlineExceeded, KeyInProgress):
            if self._clock.now() + TIMER_SLACK_S >= deadline:
                raise
            return None
        except TimeoutError:
            raise _still_running(work.claim.key) from None

    # ---- The work -----------------------------------------------------------------------------------------

    async def _run(self, work: _Work, asking: Asking[Reply]) -> Reply | None:
        """Take the key, make the call, record its answer. None when the last caller has left meanwhile."""
        if (body := await self._recall(work)) is not None:
            return msgspec.structs.replace(asking.decode(body), replayed=True)
        taken = await self._take(work, asking, bounded=True)
        if not isinstance(taken, Run):
            return taken
        try:
            reply = await self._call(work, taken, asking)
        except KeyInProgress:
            # Overtaken before anything was sent: the other process's answer counts.
            taken = await self._take(work, asking)
            if isinstance(taken, Run):
                await self._held.free(work.place, work.claim, taken.lease)
                raise
            return taken
        return await self._record(work, taken, reply, asking)

    async def _recall(self, work: _Work) -> bytes | None:
        """The answer that waits for the store, if it counts."""
        answer = self._held.kept(work.place)
        if answer is None:
            return None
        if answer.claim.request_hash != work.claim.request_hash:
            raise KeyMismatch(work.claim.key)
        with work.seen_through():
            return answer.body if await self._held.counts(work.place, answer) else None

    async def _take(self, work: _Work, asking: Asking[Reply], *, bounded: bool = False) -> Run | Reply | None:
        """The key, or its recorded answer; another process's work is waited for. None when all callers have left.

        `bounded`: before the call, so there must be room for its answer.
        """
        while True:
            with work.seen_through():
                async with self._quota.bound() if bounded else nullcontext() as quota:
                    verdict = await self._held.reserve(work.place, work.claim, quota=quota)
                if not work.waiting:
                    if isinstance(verdict, Run):
                        await self._held.free(work.place, work.claim, verdict.lease)
                    return None
            if isinstance(verdict, Run):
                return verdict
            if (reply := self._known(work.claim.key, verdict, asking)) is not None:
                return reply
            if self._clock.now() + ASK_AGAIN_S >= work.deadline:
                raise _still_running(work.claim.key)
            await self._clock.sleep(ASK_AGAIN_S)

    async def _call(self, work: _Work, run: Run, asking: Asking[Reply]) -> Reply:
        if run.rerun:
            logger.warning(
                "idempotency key %r runs again: its process died after sending", work.claim.key[:100]
            )

        async def announce() -> None:
            """Written before the first byte is sent: after a crash, `reserved` proves that none was."""
            if not await self._held.mark_sent(work.place, work.claim, run.lease):
                raise _still_running(work.claim.key)

        try:
            return await asking.ask(announce)
        except BaseException:
            with work.seen_through():
                await self._held.free(work.place, work.claim, run.lease)
            raise

    async def _record(self, work: _Work, run: Run, reply: Reply, asking: Asking[Reply]) -> Reply | None:
        """The reply when its answer counts, or else the one that another process has recorded."""
        answer = Answer(work.claim, run.lease, asking.encode(reply))
        while True:
            with work.seen_through():
                if await self._held.record(work.place, answer):
                    return reply
            taken = await self._take(work, asking)
            if not isinstance(taken, Run):
                return taken
            answer.lease = taken.lease

    def _known(self, key: str, verdict: Verdict, asking: Asking[Reply]) -> Reply | None:
        """The stored answer; None while another process works on it."""
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
