"""Dead letters from afar: look at them, send them back to work, let them go."""

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, TypedDict, Unpack

import msgspec

from headgate.client.asking import Asking, given, in_path
from headgate.client.line import Call
from headgate.core.job import DeadLetter, Job

_PATH = "/v1/dead-letters"


class Which(TypedDict, total=False):
    """The filters. What is not said matches everything."""

    task: str | None
    reason: str | None
    model: str | None
    error_class: str | None
    since: datetime | None
    until: datetime | None


class _Counted(msgspec.Struct):
    matched: int


class DeadLetters(Asking):
    """`client.dead_letters`."""

    def list(
        self, /, *, limit: int | None = None, after: str | None = None, **which: Unpack[Which]
    ) -> AsyncGenerator[DeadLetter, None]:
        """Newest first. `limit` is the size of a page, not of the list; `after` goes on behind one."""
        return self._pages(_PATH, {**_spelled(which), "limit": limit, "after": after}, DeadLetter)

    async def get(self, job_id: str) -> DeadLetter:
        return (await self._get(f"{_PATH}/{in_path(job_id)}")).read(DeadLetter)

    async def count(self, /, **which: Unpack[Which]) -> int:
        """How many match; a filter is required."""
        answer = await self._post(f"{_PATH}/replay", {**_spelled(which), "dry_run": True})
        return answer.read(_Counted).matched

    async def replay(self, job_id: str, *, input: Any = None, idempotency_key: str | None = None) -> Job:  # noqa: A002 - its name everywhere
        """Back to work, with another input where one is given."""
        path = f"/v1/jobs/{in_path(job_id)}/replay"
        return (await self._post(path, given(input=input), key=idempotency_key)).read(Job)

    async def discard(self, job_id: str) -> Job:
        """Nobody needs it any more."""
        call = Call(method="DELETE", path=f"{_PATH}/{in_path(job_id)}")
        return (await self.line.ask(call)).read(Job)

    async def replay_all(self, /, *, per_second: float | None = None, **which: Unpack[Which]) -> Job:
        """All that match; a filter is required. A job of the gateway's does it: wait for it, or cancel it."""
        return await self._order("replay", per_second, which)

    async def discard_all(self, /, *, per_second: float | None = None, **which: Unpack[Which]) -> Job:
        """Likewise."""
        return await self._order("discard", per_second, which)

    async def _order(self, verb: str, per_second: float | None, which: Which) -> Job:
        body = {**_spelled(which), **given(per_second=per_second)}
        return (await self._post(f"{_PATH}/{verb}", body)).read(Job)


def _spelled(which: Which) -> dict[str, Any]:
    """As the gateway spells them."""
    names = {"error_class": "class"}
    return {names.get(name, name): value for name, value in which.items() if value is not None}
