"""`/v1/batches`: create, list, look, cancel, retry, in OpenAI's shapes."""

import asyncio
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headgate.batches.batches import Created
from headgate.core.access import Action
from headgate.gateway import Gateway
from headgate.server.access import Access
from headgate.server.reading import Nothing, Word, read_body, read_idempotency_key, read_query
from headgate.server.replies import admit, admit_work, json_reply, paged, route

USUAL_LIMIT: Final = 20


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `GET /v1/batches`."""

    limit: int = USUAL_LIMIT
    after: str | None = None


class NewBatch(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/batches`."""

    input_file_id: Word
    endpoint: Word
    completion_window: str
    metadata: dict[str, str] | None = None


_new_batch: Final = msgspec.json.Decoder(NewBatch)
_nothing: Final = msgspec.json.Decoder(Nothing)


class BatchRoutes:
    """The routes over one gateway. `closing` is set when the process begins to go away."""

    def __init__(self, gateway: Gateway, access: Access, closing: asyncio.Event) -> None:
        self._batches = gateway.batches
        self._access = access
        self._closing = closing

    def routes(self) -> list[Route]:
        return [
            route("/v1/batches", GET=self._list, POST=self._create),
            route("/v1/batches/{batch_id}", GET=self._show),
            route("/v1/batches/{batch_id}/cancel", POST=self._cancel),
            route("/v1/batches/{batch_id}/retry", POST=self._retry),
        ]

    async def _create(self, request: Request) -> Response:
        caller = admit_work(self._access, request, self._closing)
        key = read_idempotency_key(request)
        asked = await read_body(request, _new_batch)
        created = await self._batches.create(
            input_file_id=asked.input_file_id,
            endpoint=asked.endpoint,
            completion_window=asked.completion_window,
            metadata=asked.metadata,
            models=caller.models,
            idempotency_key=key,
            tenant=caller.tenant,
        )
        return _told(created)

    async def _list(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        asked = read_query(request, Listing)
        look = partial(self._batches.list, tenant=caller.tenant)
        return await paged(look, limit=asked.limit, after=asked.after)

    async def _show(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        read_query(request, Nothing)
        return json_reply(await self._batches.get(request.path_params["batch_id"], tenant=caller.tenant))

    async def _cancel(self, request: Request) -> Response:
        caller = admit_work(self._access, request, self._closing)
        await read_body(request, _nothing, empty=b"{}")
        return json_reply(await self._batches.cancel(request.path_params["batch_id"], tenant=caller.tenant))

    async def _retry(self, request: Request) -> Response:
        caller = admit_work(self._access, request, self._closing)
        key = read_idempotency_key(request)
        await read_body(request, _nothing, empty=b"{}")
        created = await self._batches.retry(
            request.path_params["batch_id"], models=caller.models, idempotency_key=key, tenant=caller.tenant
        )
        return _told(created)


def _told(created: Created) -> Response:
    return json_reply(created.batch, replayed=not created.is_new)
