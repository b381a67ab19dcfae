"""Writing with a slot in hand: a regeneration never queues again."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import headgate
from headgate.apps.articles.contracts import Contract
from headgate.apps.articles.options import Options
from headgate.apps.articles.repetition import parameters
from headgate.apps.articles.shapes import Draft, draft_of
from headgate.apps.articles.writing import BLANK, unusable

MOST_BLANK = 2
"""A text that the model has nothing to say about twice will get no third slot time."""


class SlotWriter:
    """`async with SlotWriter(…) as writer`: one slot for all of a summary, and one deadline."""

    def __init__(
        self,
        gateway: headgate.Gateway,
        options: Options,
        *,
        lane: headgate.Lane,
        tenant: str,
        timeout_s: float,
        used: Callable[[int], None],
    ) -> None:
        self._gateway = gateway
        self._options = options
        self._lane = lane
        self._tenant = tenant
        self._timeout_s = timeout_s
        self._ends_at = _now() + timeout_s
        self._used = used
        """Told what every answer cost, those that cannot be used included."""
        self._holding = AsyncExitStack()
        self._slot: headgate.HeldSlot | None = None

    @property
    def held(self) -> bool:
        """Whether a slot was granted: from then on nobody is refused any more."""
        return self._slot is not None

    async def __aenter__(self) -> Self:
        await self._take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._holding.aclose()

    async def write(self, step: str, contract: Contract, text: str) -> Draft:  # noqa: ARG002 - a job keeps steps
        """Whatever the model writes until it is usable. A slot that an interactive call takes is waited for anew."""
        while True:
            slot = self._slot or await self._take()
            try:
                return await self._write(slot, contract, text)
            except headgate.Preempted:
                self._slot = None
                await self._holding.aclose()

    async def _take(self) -> headgate.HeldSlot:
        left_s = self._ends_at - _now()
        if left_s <= 0:
            raise headgate.DeadlineExceeded(f"no summary within {self._timeout_s:g} s")
        holding = self._gateway.hold_slot(
            self._options.model, self._lane, deadline_s=left_s, tenant=self._tenant
        )
        self._slot = await self._holding.enter_async_context(holding)
        return self._slot

    async def _write(self, slot: headgate.HeldSlot, contract: Contract, text: str) -> Draft:
        flaw, blank = "", 0
        for regeneration in range(1 + self._options.max_repetition_retries):
            draft = await self._generate(slot, contract, text, regeneration)
            flaw = BLANK if draft is None else contract.flaw(draft.summary) or ""
            if draft is not None and not flaw:
                return draft
            blank = blank + 1 if draft is None else 0
            if blank == MOST_BLANK:
                break
        raise unusable(flaw, attempts=regeneration + 1)

    async def _generate(
        self, slot: headgate.HeldSlot, contract: Contract, text: str, regeneration: int
    ) -> Draft | None:
        """None when the answer is blank."""
        asked = parameters(self._options.temperature, regeneration)
        try:
            reply = await slot.generate_raw(contract.messages(text), **asked)
        except headgate.OutputInvalid:
            return None
        self._used(reply.usage.total_tokens)
        draft = draft_of(reply, contract.name)
        return draft if draft.summary else None


def _now() -> float:
    return asyncio.get_running_loop().time()
