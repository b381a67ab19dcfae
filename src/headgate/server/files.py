"""`/v1/files`: upload, list, look, read, delete. An upload goes to the disk as it comes."""

import asyncio
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from headgate.batches.files import Upload
from headgate.core.access import Action
from headgate.core.errors import InvalidRequest
from headgate.gateway import Gateway
from headgate.server.access import Access
from headgate.server.multipart import Multipart, Part, read_boundary
from headgate.server.reading import Nothing, Word, read_query
from headgate.server.replies import admit, admit_work, json_reply, paged, route

UPLOADS: Final = "/v1/files"
FRAMING_BYTES: Final = 64 * 1024
"""What the other parts of an upload may take, besides the file."""
USUAL_LIMIT: Final = 100
_FILE: Final = "file"
_PURPOSE: Final = "purpose"


class Listing(msgspec.Struct, forbid_unknown_fields=True):
    """The query of `GET /v1/files`."""

    purpose: Word | None = None
    limit: int = USUAL_LIMIT
    after: str | None = None


class Deleted(msgspec.Struct):
    id: str
    object: str = "file"
    deleted: bool = True


class FileRoutes:
    """The routes over one gateway. `closing` is set when the process begins to go away."""

    def __init__(self, gateway: Gateway, access: Access, closing: asyncio.Event) -> None:
        self._files = gateway.files
        self._access = access
        self._closing = closing

    def routes(self) -> list[Route]:
        return [
            route(UPLOADS, GET=self._list, POST=self._upload),
            route(f"{UPLOADS}/{{file_id}}", GET=self._show, DELETE=self._delete),
            route(f"{UPLOADS}/{{file_id}}/content", GET=self._content),
        ]

    async def _upload(self, request: Request) -> Response:
        caller = admit_work(self._access, request, self._closing)
        read_query(request, Nothing)
        form = _Form(read_boundary(request.headers.get("content-type", "")))
        async with self._files.upload(tenant=caller.tenant) as upload:
            await form.read(request, upload)
            file = await upload.keep(filename=form.filename, purpose=form.purpose, tenant=caller.tenant)
        return json_reply(file)

    async def _list(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        asked = read_query(request, Listing)
        look = partial(self._files.list, purpose=asked.purpose, tenant=caller.tenant)
        return await paged(look, limit=asked.limit, after=asked.after)

    async def _show(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        read_query(request, Nothing)
        return json_reply(await self._files.get(request.path_params["file_id"], tenant=caller.tenant))

    async def _content(self, request: Request) -> Response:
        caller = admit(self._access, request, Action.LOOK)
        read_query(request, Nothing)
        path = await self._files.content(request.path_params["file_id"], tenant=caller.tenant)
        return FileResponse(path, media_type="application/octet-stream")

    async def _delete(self, request: Request) -> Response:
        caller = admit_work(self._access, request, self._closing)
        read_query(request, Nothing)
        file_id = request.path_params["file_id"]
        await self._files.delete(file_id, tenant=caller.tenant)
        return json_reply(Deleted(file_id))


class _Form:
    """An upload's parts. The file goes to the disk; the rest is a few words."""

    def __init__(self, boundary: bytes) -> None:
        self.filename = ""
        self.purpose = ""
        self._multipart = Multipart(boundary)
        self._part: str | None = None
        self._words: dict[str, bytes] = {}
        self._words_bytes = 0

    async def read(self, request: Request, upload: Upload) -> None:
        async for data in request.stream():
            for found in self._multipart.feed(data):
                if isinstance(found, Part):
                    self._begin(found)
                elif self._part == _FILE:
                    await upload.write(found)
                else:
                    self._add(found)
        self._multipart.close()
        if not self.filename:
            raise InvalidRequest("the upload has no part called file", param=_FILE)
        self.purpose = self._words.get(_PURPOSE, b"").decode(errors="replace")

    def _begin(self, part: Part) -> None:
        if part.name not in {_FILE, _PURPOSE}:
            raise InvalidRequest(
                f"an upload has the parts file and purpose, not {part.name!r:.60}", param=part.name[:60]
            )
        if part.name in self._words or (part.name == _FILE and self.filename):
            raise InvalidRequest(f"the part {part.name} comes twice", param=part.name)
        self._part = part.name
        if part.name == _FILE:
            self.filename = part.filename or "batch.jsonl"
        else:
            self._words[part.name] = b""

    def _add(self, piece: bytes) -> None:
        self._words_bytes += len(piece)
        if self._words_bytes > FRAMING_BYTES:
            raise InvalidRequest(f"the part {self._part} is too long", param=self._part)
        if self._part is not None:
            self._words[self._part] += piece
