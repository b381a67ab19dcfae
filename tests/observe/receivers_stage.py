"""A webhook's receiver: a real server on this machine that keeps what it gets and answers as it is told."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from standardwebhooks.webhooks import Webhook

Answer = int | bytes | None
"""A status; the bytes of an answer; None: the connection is cut without one."""


@dataclass(frozen=True)
class Received:
    """One message, as it came."""

    at: float
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def told(self) -> Any:
        return msgspec.json.decode(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """By the official library's own signature: its `verify` knows real time only."""
        at = datetime.fromtimestamp(int(self.headers["webhook-timestamp"]), UTC)
        expected = Webhook(secret).sign(self.id, at, self.body.decode())
        return expected in self.headers["webhook-signature"].split(" ")


class Receiver:
    """Has its address from the start, and takes connections from `up` to `down`."""

    def __init__(self, now: Callable[[], float], answers: Sequence[Answer] = ()) -> None:
        self.received: list[Received] = []
        self.answers = list(answers)
        """One after the other, then 204 for ever."""
        self._now = now
        self._server: asyncio.Server | None = None
        # Bound but not listening: nobody else gets the port, and whoever connects is refused.
        self._socket = _bound(0)
        self.port: int = self._socket.getsockname()[1]

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._socket)

    async def down(self) -> None:
        assert self._server is not None
        self._server.close()
        self._socket = _bound(self.port)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._socket.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append(Received(self._now(), head.split()[1], headers, body))
        answer = self.answers.pop(0) if self.answers else 204
        if isinstance(answer, int):
            answer = f"HTTP/1.1 {answer} So\r\nContent-Length: 0\r\n\r\n".encode()
        if answer is not None:
            writer.write(answer)
        writer.close()


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made
