"""`/v1/dead-letters`: look at them, let one go; replay or discard all that match, as a job that can be followed and stopped."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Annotated, Final, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.core.access import Action
from headgate.core.errors import ModelNotAllowed
from headgate.core.job import Job, JobState
from headgate.gateway import Gateway
from headgate.runner.dead_filter import DeadFilters, check_some
from headgate.runner.dead_letters import REPLAYS_PER_S
from headgate.runner.jobs import JobHandle
from headgate.server.access import Access, Caller
from headgate.server.jobs import USUAL_LIMIT
from headgate.server.reading import Nothing, Word, read_body, read_idempotency_key, read_query
from headgate.server.replies import accepted, admit, admit_work, json_reply, paged, route

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
UNSET: Final = msgspec.UNSET


class Which(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The filters, in a query and in a body alike."""

    task: Word | msgspec.UnsetType = UNSET
    reason: Word | msgspec.UnsetType = UNSET
    model: Word | msgspec.UnsetType = UNSET
    error_class: Word | msgspec.UnsetType = msgspec.field(default=UNSET, name="class")
    since: Moment | msgspec.UnsetType = UNSET
    until: Moment | msgspec.UnsetType = UNSET

    @property
    def filters(self) -> DeadFilters:
        """What was given."""
        said = {name: getattr(self, name) for name in Which.__struct_fields__}
        return cast("DeadFilters", {name: value for name, value in said.items() if value is not UNSET})


class Listing(Which, kw_only=True, forbid_unknown_fields=True):
    """The query of `GET /v1/dead-letters`."""

    limit: int = USUAL_LIMIT
    after: str | None = None


class Bulk(Which, kw_only=True, forbid_unknown_fields=True):
    """The body of a replay or a discard of many."""

    per_second: float = REPLAYS_PER_S
    dry_run: bool = False


_bulk: Final = msgspec.json.Decoder(Bulk)


class DeadLetterRoutes:
    """The routes over one gateway."""

    def __init__(self, gateway: Gateway, access: Access, closing: asyncio.Event) -> None:
        self._gateway = gateway
        self._access = access
        self._closing = closing

    def routes(self) -> list[Route]:
        return [
            route("/v1/dead-letters", GET=self._list),
            route("/v1/dead-letters/replay", POST=self._replay),
            route("/v1/dead-letters/discard", POST=self._discard),
            route("/v1/dead-letters/{job_id}", GET=self._show, DELETE=self._let_go),
        ]

    async def _list(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        asked = read_query(request, Listing)
        look = partial(self._gateway.dead_letters.list, **asked.filters, tenant=caller.tenant)
        return await paged(look, limit=asked.limit, after=asked.after)

    async def _show(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        read_query(request, Nothing)
        job_id = request.path_params["job_id"]
        return json_reply(await self._gateway.dead_letters.get(job_id, tenant=caller.tenant))

    async def _let_go(self, request: Request) -> Response:
        """Once more is no mistake: the answer to the first may have been lost."""
        caller = admit_work(self._access, request, self._closing)
        read_query(request, Nothing)
        job = await self._find(request, caller)
        if job.model is not None:
            caller.check_model(job.model)
        if (job.state, job.reason) != (JobState.CANCELLED, "discarded"):
            await self._gateway.dead_letters.discard(job.id, by=caller.name, tenant=caller.tenant)
        return json_reply(await self._find(request, caller))

    async def _replay(self, request: Request) -> Response:
        return await self._order(request, self._gateway.bulk.replay)

    async def _discard(self, request: Request) -> Response:
        return await self._order(request, self._gateway.bulk.discard)

    async def _order(self, request: Request, submit: Callable[..., Awaitable[JobHandle]]) -> Response:
        caller = admit_work(self._access, request, self._closing)
        key = read_idempotency_key(request)
        asked = await read_body(request, _bulk)
        _check_models(caller, asked.filters.get("model"))
        if asked.dry_run:
            return json_reply({"matched": await self._count(asked, caller.tenant)})
        handle = await submit(
            **asked.filters,
            by=caller.name,
            per_second=asked.per_second,
            idempotency_key=key,
            tenant=caller.tenant,
        )
        return accepted(await handle.job(), replayed=key is not None and not handle.created)

    async def _count(self, asked: Bulk, tenant: str) -> int:
        check_some(asked.filters)
        return await self._gateway.dead_letters.count(**asked.filters, tenant=tenant)

    async def _find(self, request: Request, caller: Caller) -> Job:
        return await self._gateway.jobs.get(request.path_params["job_id"], tenant=caller.tenant)


def _check_models(caller: Caller, model: str | None) -> None:
    """A key for some models must not spend on others by way of their dead letters."""
    if model is not None:
        caller.check_model(model)
    elif not caller.may_use(""):
        raise ModelNotAllowed("this key is for some models only: say which one is meant, with model")
