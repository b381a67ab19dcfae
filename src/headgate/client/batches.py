"""Batches from afar: a file of requests in, a file of answers out, by lines on both sides."""

import math
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from headgate.client.asking import Asking, in_path
from headgate.client.line import Call, Line
from headgate.core.errors import DeadlineExceeded
from headgate.transport import TransportError

Batch = dict[str, Any]
Lines = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
FIRST_LOOK_S: Final = 0.25
LONGEST_LOOK_S: Final = 5.0


class Batches(Asking):
    """`client.batches`: the OpenAI Batch API."""

    def __init__(self, line: Line, new_id: Callable[[], str]) -> None:
        super().__init__(line, new_id)
        self._boundary = f"headgate-{new_id()}"

    async def create(
        self,
        lines: Lines,
        *,
        endpoint: str = "/v1/chat/completions",
        completion_window: str = "24h",
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Batch:
        """Upload a JSONL file, or requests `{"custom_id": …, "body": …}`, and begin.

        The file goes up as one body: it has to fit into memory.
        """
        file_id = await self.upload(lines, endpoint=endpoint)
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": completion_window}
        if metadata is not None:
            body["metadata"] = dict(metadata)  # type: ignore[assignment]
        return (await self._post("/v1/batches", body, key=idempotency_key)).read(Batch)

    async def upload(self, lines: Lines, *, endpoint: str = "/v1/chat/completions") -> str:
        """A file's id."""
        form = _form(self._boundary, *_content(lines, endpoint))
        kind = (b"content-type", f"multipart/form-data; boundary={self._boundary}".encode())
        call = Call(method="POST", path="/v1/files", body=form, key=self._new_id(), headers=(kind,))
        return str((await self.line.ask(call)).json["id"])

    async def get(self, batch_id: str) -> Batch:
        return (await self._get(f"/v1/batches/{in_path(batch_id)}")).read(Batch)

    def list(self, *, limit: int | None = None, after: str | None = None) -> AsyncGenerator[Batch, None]:
        return self._pages("/v1/batches", {"limit": limit, "after": after}, Batch)

    async def cancel(self, batch_id: str) -> Batch:
        return (await self._post(f"/v1/batches/{in_path(batch_id)}/cancel")).read(Batch)

    async def retry(self, batch_id: str, *, idempotency_key: str | None = None) -> Batch:
        """A new batch of the lines that failed."""
        path = f"/v1/batches/{in_path(batch_id)}/retry"
        return (await self._post(path, key=idempotency_key)).read(Batch)

    async def wait(
        self,
        batch_id: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as everywhere that waits for the end of something
        *,
        on_progress: Callable[[Batch], object] | None = None,
    ) -> Batch:
        """The batch once it has ended, however it did. `DeadlineExceeded` when that takes longer."""
        clock = self.line.clock
        ends_at = math.inf if timeout is None else clock.now() + timeout
        look_s = FIRST_LOOK_S
        while (batch := await self.get(batch_id))["status"] not in _ENDED:
            if on_progress is not None:
                on_progress(batch)
            left_s = ends_at - clock.now()
            if left_s <= 0:
                raise DeadlineExceeded(f"batch {batch_id} has not ended within {timeout:g} s; it goes on")
            await clock.sleep(min(look_s, left_s))
            look_s = min(look_s * 2, LONGEST_LOOK_S)
        return batch

    async def output(self, batch_id: str, *, errors: bool = False) -> AsyncGenerator[dict[str, Any], None]:
        """The lines of the output file, or of the error file, one by one as they arrive; none where there is no file."""
        file_id = (await self.get(batch_id)).get("error_file_id" if errors else "output_file_id")
        if file_id is None:
            return
        call = Call(method="GET", path=f"/v1/files/{in_path(file_id)}/content")
        with await self.line.open(call) as response:
            try:
                async for line in response.lines():
                    if line:
                        yield msgspec.json.decode(line)
            except TransportError as error:
                raise self.line.setback_of(error).error from error


def _content(lines: Lines, endpoint: str) -> tuple[bytes, str]:
    if isinstance(lines, str | os.PathLike):
        path = Path(lines)
        return path.read_bytes(), path.name
    requests = ({"method": "POST", "url": endpoint, **line} for line in lines)
    return b"".join(msgspec.json.encode(request) + b"\n" for request in requests), "batch.jsonl"


def _form(boundary: str, content: bytes, name: str) -> bytes:
    """A form with two fields: what the file is for, and the file."""
    quoted = name.replace("\\", "_").replace('"', "_").replace("\r", "_").replace("\n", "_")
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{quoted}"\r\n'
        "Content-Type: application/jsonl\r\n\r\n"
    )
    return b"%b%b\r\n--%b--\r\n" % (head.encode(), content, boundary.encode())
