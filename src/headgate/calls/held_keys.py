"""The idempotency keys that this process holds in the store: reserved, sent, finished, freed.

While the store is away, an answer is kept in memory and stored later. What a lost response leaves in doubt is settled
after each renewal of the node: what was kept is stored, and a key that is held but not worked on is freed. Knows
nothing of calls; `once.py` makes those.
"""

import logging
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from headgate.core.errors import StoreUnavailable
from headgate.core.idempotency import IdempotencyRules, KeyClaim, Run, Verdict
from headgate.core.ports.clock import Clock
from headgate.core.ports.keys import Keys

logger = logging.getLogger("headgate")
MAX_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Answers that wait for the store, all together."""
Place: TypeAlias = tuple[str, str, str]
"""(tenant, endpoint, key)."""


class Holder(Protocol):
    """The node whose lease covers the keys."""

    @property
    def id(self) -> str: ...

    @property
    def on_renewed(self) -> list[Callable[[], Awaitable[None]]]: ...

    def lease_left_s(self) -> float: ...

    async def hold(self) -> None: ...


@dataclass(slots=True)
class Answer:
    """An encoded reply on its way into the store."""

    claim: KeyClaim
    lease: int
    body: bytes
    ours: bool = True
    """The key cannot have been taken over: no write was refused, and our lease has run without a gap."""


class HeldKeys:
    """Reserve, record, free; and settle what is in doubt."""

    def __init__(
        self,
        keys: Keys,
        rules: IdempotencyRules,
        node: Holder,
        clock: Clock,
        working: Container[Place],
    ) -> None:
        """`working` are the keys that calls of this process use now."""
        self._keys = keys
        self._rules = rules
        self._node = node
        self._clock = clock
        self._working = working
        self._kept: dict[Place, Answer] = {}
        self._ids: set[str] = set()
        """Under which keys were reserved: the node gets a new id after it was declared dead."""
        node.on_renewed.append(self._settle)

    async def reserve(self, place: Place, claim: KeyClaim, *, quota: int | None = None) -> Verdict:
        # A node that was declared dead could take a key that another one takes as well.
        await self._node.hold()
        node, now = self._node.id, self._clock.utc().timestamp()
        self._ids.add(node)
        return await self._keys.reserve(
            place[0], claim, node=node, unknown=self._rules.unknown, now=now, quota=quota
        )

    async def mark_sent(self, place: Place, claim: KeyClaim, lease: int) -> bool:
        return await self._keys.mark_sent(place[0], claim, lease)

    async def free(self, place: Place, claim: KeyClaim, lease: int) -> None:
        try:
            await self._keys.free(place[0], claim, lease)
        except StoreUnavailable as error:
            logger.info("idempotency key %r is freed after the next renewal: %s", claim.key[:100], error)

    async def record(self, place: Place, answer: Answer) -> bool:
        """True when this answer counts: it is recorded, or kept while the store is away. False when another's does.

        Raises `StoreUnavailable` when it is unknown which one counts, or there is no room to keep it.
        """
        try:
            return await self._store(place, answer)
        except StoreUnavailable as error:
            self._keep(place, answer, error)
            return True

    def kept(self, place: Place) -> Answer | None:
        """The answer that waits for the store."""
        return self._kept.get(place)

    async def counts(self, place: Place, answer: Answer) -> bool:
        """Whether an answer that was kept may be returned. After the lease has ended only the store can tell."""
        lease_runs = answer.ours and self._node.lease_left_s() > 0
        return lease_runs or await self._store(place, answer)

    async def aclose(self) -> None:
        """Store what was kept, before the node leaves."""
        try:
            for place, answer in list(self._kept.items()):
                await self._store(place, answer)
        except StoreUnavailable as error:
            logger.warning("%d answer(s) under idempotency keys are lost: %s", len(self._kept), error)

    # ---- How it is done -----------------------------------------------------------------------------------

    async def _store(self, place: Place, answer: Answer) -> bool:
        """The write that the store accepts decides. A key that is free again gets this answer."""
        recorded = True
        while not await self._keys.finish(place[0], answer.claim, answer.lease, status=200, body=answer.body):
            answer.ours = False
            verdict = await self.reserve(place, answer.claim)
            if not isinstance(verdict, Run):
                recorded = False
                break
            answer.lease = verdict.lease
        if self._kept.get(place) is answer:
            del self._kept[place]
        return recorded

    def _keep(self, place: Place, answer: Answer, error: StoreUnavailable) -> None:
        key = answer.claim.key[:100]
        others = sum(len(kept.body) for other, kept in self._kept.items() if other != place)
        if others + len(answer.body) > MAX_KEPT_BYTES:
            raise StoreUnavailable(
                f"{error}; the answer under idempotency key {key!r} is lost: {others >> 20} MiB of answers"
                " wait for the store already"
            ) from error
        self._kept[place] = answer
        if not answer.ours or self._node.lease_left_s() <= 0:
            raise error
        logger.warning(
            "the answer under idempotency key %r is kept in memory until it can be stored: %s", key, error
        )

    async def _settle(self) -> None:
        # The lease may have ended before this renewal: from now on only the store knows whose key it is.
        for answer in self._kept.values():
            answer.ours = False
        await self._store_kept()
        await self._free_unused()

    async def _store_kept(self) -> None:
        for place, answer in list(self._kept.items()):
            if place not in self._working and not await self._store(place, answer):
                logger.warning(
                    "idempotency key %r has an answer from another process; the one kept here is dropped",
                    answer.claim.key[:100],
                )

    async def _free_unused(self) -> None:
        """A reservation whose response was lost, or a key that could not be freed: no call would ever free them."""
        freed = 0
        for node in tuple(self._ids):
            held = await self._keys.held_keys(node)
            for key in held:
                place = (key.tenant, key.claim.endpoint, key.claim.key)
                # A reservation that has begun since, here or elsewhere, gets a newer lease.
                if place not in self._working and place not in self._kept:
                    freed += await self._keys.free(key.tenant, key.claim, key.lease)
            if not held and node != self._node.id:
                self._ids.discard(node)
        if freed:
            logger.info("%d idempotency key(s) that no call was using are free again", freed)
