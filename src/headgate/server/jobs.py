"""`/v1/jobs`: submit, list, look at and wait for, cancel, replay. A caller meets the jobs of its tenant and no others."""

import asyncio
import contextlib
from functools import partial
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.core.access import Action
from headgate.core.errors import InvalidRequest
from headgate.core.job import Job, JobState
from headgate.gateway import Gateway
from headgate.runner.jobs import JobHandle
from headgate.runner.submission import Submission, at_index
from headgate.server.access import Access, Caller
from headgate.server.reading import Nothing, Word, read_body, read_idempotency_key, read_query
from headgate.server.replies import (
    accepted,
    admit,
    admit_work,
    cancelled_when_gone,
    json_reply,
    page,
    paged,
    route,
)

USUAL_LIMIT: Final = 20
LONGEST_WAIT_S: Final = 60.0


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `GET /v1/jobs`."""

    state: str | None = None
    task: Word | None = None
    model: Word | None = None
    limit: int = USUAL_LIMIT
    after: str | None = None


class Waiting(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `GET /v1/jobs/{job_id}`: how many seconds to wait for its end."""

    wait: float = 0.0


class Replay(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/jobs/{job_id}/replay`: another input, or the one it had."""

    input: Any = None


class TakenIn(msgspec.Struct):
    """One job of a list that was accepted; its record is at `/v1/jobs/{id}`."""

    id: str
    task: str
    state: JobState | None


_submissions: Final = msgspec.json.Decoder(Submission | list[Submission])
_replay: Final = msgspec.json.Decoder(Replay)
_nothing: Final = msgspec.json.Decoder(Nothing)


class JobRoutes:
    """The routes over one gateway. `closing` is set when the process begins to go away."""

    def __init__(self, gateway: Gateway, access: Access, closing: asyncio.Event) -> None:
        self._gateway = gateway
        self._access = access
        self._closing = closing

    def routes(self) -> list[Route]:
        return [
            route("/v1/jobs", GET=self._list, POST=self._submit),
            route("/v1/jobs/{job_id}", GET=self._show),
            route("/v1/jobs/{job_id}/cancel", POST=self._cancel),
            route("/v1/jobs/{job_id}/replay", POST=self._replay),
        ]

    async def _list(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        asked = read_query(request, Listing)
        look = partial(
            self._gateway.jobs.list,
            state=asked.state,
            task=asked.task,
            model=asked.model,
            tenant=caller.tenant,
        )
        return await paged(look, limit=asked.limit, after=asked.after)

    async def _submit(self, request: Request) -> Response:
        caller = admit_work(self._access, request, self._closing)
        key = read_idempotency_key(request)
        asked = await read_body(request, _submissions, root="jobs")
        if isinstance(asked, list):
            return await self._submit_many(caller, asked, key)
        self._check_model(caller, asked)
        options = msgspec.structs.asdict(asked)
        handle = await self._gateway.jobs.submit(**options, idempotency_key=key, tenant=caller.tenant)
        # From what was stored: a second look at the database could only say less of the acceptance.
        return accepted(await handle.accepted(), replayed=_is_replay(key, handle))

    async def _submit_many(self, caller: Caller, asked: list[Submission], key: str | None) -> Response:
        for index, one in enumerate(asked):
            with at_index(index):
                self._check_model(caller, one)
        jobs = self._gateway.jobs
        handles = await jobs.submit_many(asked, idempotency_key=key, tenant=caller.tenant)
        known = [handle.id for handle in handles if not handle.created]
        states = await self._gateway.durable.store.states(known) if known else {}
        taken = [
            TakenIn(handle.id, one.task, JobState.PENDING if handle.created else states.get(handle.id))
            for handle, one in zip(handles, asked, strict=True)
        ]
        return json_reply(page(taken), status=202, replayed=_is_replay(key, handles[0]))

    async def _show(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        wait_s = read_query(request, Waiting).wait
        if not 0 <= wait_s <= LONGEST_WAIT_S:
            raise InvalidRequest(f"wait must be from 0 to {LONGEST_WAIT_S:g} seconds", param="wait")
        job_id = request.path_params["job_id"]
        with cancelled_when_gone(request), contextlib.suppress(TimeoutError):
            if wait_s and (job := await self._ended(job_id, wait_s, caller.tenant)) is not None:
                return json_reply(job)
        return json_reply(await self._gateway.jobs.get(job_id, tenant=caller.tenant))

    async def _cancel(self, request: Request) -> Response:
        caller = admit_work(self._access, request, self._closing)
        await read_body(request, _nothing, empty=b"{}")
        job_id = request.path_params["job_id"]
        await self._gateway.jobs.cancel(job_id, tenant=caller.tenant)
        return json_reply(await self._gateway.jobs.get(job_id, tenant=caller.tenant))

    async def _replay(self, request: Request) -> Response:
        caller = admit_work(self._access, request, self._closing)
        key = read_idempotency_key(request)
        edited = await read_body(request, _replay, empty=b"{}")
        job = await self._gateway.jobs.get(request.path_params["job_id"], tenant=caller.tenant)
        for model in (job.model, self._gateway.durable.intake.model_anew(job, edited.input)):
            if model is not None:
                caller.check_model(model)
        handle = await self._gateway.dead_letters.replay(
            job.id, input=edited.input, by=caller.name, idempotency_key=key, tenant=caller.tenant
        )
        return accepted(await handle.job(), replayed=_is_replay(key, handle))

    async def _ended(self, job_id: str, wait_s: float, tenant: str) -> Job | None:
        """The job at its end; None when the process goes away first, TimeoutError when time is up."""
        waiting = asyncio.ensure_future(self._gateway.jobs.wait(job_id, timeout=wait_s, tenant=tenant))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({waiting, closing}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            waiting.cancel()
            closing.cancel()

    def _check_model(self, caller: Caller, asked: Submission) -> None:
        """Before anybody is told whether there is such a model."""
        if model := self._gateway.durable.intake.model_named(asked):
            caller.check_model(model)


def _is_replay(key: str | None, handle: JobHandle) -> bool:
    return key is not None and not handle.created
