"""A TCP relay before PostgreSQL that breaks the way networks break: cut, silent, refused, slow, or cut at a statement.

It reads enough of the frontend protocol to know which SQL a message runs: a prepared statement is named once (Parse)
and then run by its name (Bind), with its arguments beside it.
"""

import asyncio
import contextlib
import enum
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import urlsplit

SSL_REQUEST: Final = 80877103
GSS_REQUEST: Final = 80877104
CANCEL_REQUEST: Final = 80877102
READY: Final = b"Z\x00\x00\x00\x05"
"""The server's "ready for query", without its last byte: the statement and its transaction's state are settled."""


class Moment(enum.StrEnum):
    """When a connection is cut, seen from the statement."""

    BEFORE = "before"
    """The server never receives it."""
    AFTER = "after"
    """The server has carried it out; its answer is lost."""


@dataclass
class Cut:
    """One cut to come: at the `nth` message that holds all of these bytes, in its SQL or in its arguments."""

    texts: tuple[bytes, ...]
    nth: int
    moment: Moment | None
    """None: the server has the statement, and from then on nothing arrives any more; no connection is closed."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    at: float = 0.0


class Frontend:
    """One connection's messages from the client, split and named."""

    def __init__(self) -> None:
        self._pending = b""
        self._started = False
        self._statements: dict[bytes, bytes] = {}

    def messages(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(the bytes to forward, what they run): the second is empty for messages that run nothing."""
        self._pending += data
        while (size := self._size()) is not None:
            message, self._pending = self._pending[:size], self._pending[size:]
            yield message, self._runs(message)

    def _size(self) -> int | None:
        """The next whole message's size; None until it has arrived."""
        head = 1 if self._started else 0
        if len(self._pending) < head + 4:
            return None
        size = head + int(struct.unpack_from("!i", self._pending, head)[0])
        return size if len(self._pending) >= size else None

    def _runs(self, message: bytes) -> bytes:
        if not self._started:
            code = struct.unpack_from("!i", message, 4)[0]
            self._started = code not in {SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST}
            return b""
        kind, body = message[:1], message[5:]
        match kind:
            case b"P":
                name, sql, _ = body.split(b"\0", 2)
                self._statements[name] = sql
            case b"B":
                _portal, name, arguments = body.split(b"\0", 2)
                return self._statements.get(name, b"") + b"\0" + arguments
            case b"Q":
                return body
        return b""


class Wire:
    """The relay. Everything it does to its connections ends with `heal`."""

    def __init__(self, url: str, name: str = "") -> None:
        self.name = name
        self.opened: list[tuple[float, int]] = []
        """When (epoch) a connection to the server was made, and from which port: the server knows us by that."""
        self.delay_s = 0.0
        self._target = urlsplit(url)
        self._cuts: list[Cut] = []
        self._refusing = False
        self._up = _opened_gate()
        self._down = _opened_gate()
        self._pipes: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://{self._target.username}@127.0.0.1:{port}{self._target.path}"

    # ---- What can be done to it ------------------------------------------------------------------------

    def cut_at(self, text: bytes, moment: Moment = Moment.AFTER, *, also: bytes = b"", nth: int = 1) -> Cut:
        """Cut the connection that runs the nth statement with these bytes, in its SQL or among its arguments."""
        cut = Cut((text, also), nth, moment)
        self._cuts.append(cut)
        return cut

    def stall_at(self, text: bytes) -> Cut:
        """Fall silent once a statement with these bytes has been sent on."""
        cut = Cut((text, b""), 1, None)
        self._cuts.append(cut)
        return cut

    def forget(self, cut: Cut) -> None:
        if cut in self._cuts:
            self._cuts.remove(cut)

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        """Nothing arrives any more in these directions; no connection is closed. What is sent waits, as TCP does it."""
        if up:
            self._up.clear()
        if down:
            self._down.clear()

    def refuse(self) -> None:
        """Cut everything, and every connection that is made from now on."""
        self._refusing = True
        self.cut()

    def cut(self) -> None:
        for pipe in tuple(self._pipes):
            pipe.transport.abort()

    def heal(self) -> None:
        self.delay_s, self._refusing = 0.0, False
        self._cuts.clear()
        self._up.set()
        self._down.set()

    # ---- How it is done ----------------------------------------------------------------------------------

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._note_task()
        if self._refusing:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.transport.abort()
            return
        self.opened.append((time.time(), back.get_extra_info("sockname")[1]))
        pair = {writer, back}
        self._pipes |= pair
        lost: list[Cut] = []
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._ask(reader, back, writer, lost))
                both.create_task(self._answer(there, writer, lost))
        finally:
            self._pipes -= pair
            for pipe in pair:
                pipe.close()

    def _note_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        writer: asyncio.StreamWriter,
        lost: list[Cut],
    ) -> None:
        frontend = Frontend()
        silent: Cut | None = None
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                await self._pass(self._up)
                for message, runs in frontend.messages(data):
                    cut = self._due(runs)
                    if cut is not None and cut.moment is Moment.BEFORE:
                        _cut_now(cut, writer, back)
                        return
                    if cut is not None and cut.moment is None:
                        silent = cut
                    elif cut is not None:
                        lost.append(cut)
                    back.write(message)
                if silent is not None:
                    self.stall()
                    silent.done.set()
            await self._pass(self._up)
        back.close()

    async def _answer(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: list[Cut]
    ) -> None:
        tail = b""
        with contextlib.suppress(OSError):
            while data := await there.read(1 << 20):
                if lost:
                    tail = (tail + data)[-6:]
                    if tail[:5] == READY:
                        _cut_now(lost[0], writer)
                        return
                    continue
                await self._pass(self._down)
                writer.write(data)
            await self._pass(self._down)
        writer.close()

    async def _pass(self, gate: asyncio.Event) -> None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await gate.wait()

    def _due(self, runs: bytes) -> Cut | None:
        """The cut that this message completes, if any."""
        for cut in self._cuts if runs else ():
            if all(text in runs for text in cut.texts):
                cut.nth -= 1
                if not cut.nth:
                    self._cuts.remove(cut)
                    return cut
        return None


def _cut_now(cut: Cut, *pipes: asyncio.StreamWriter) -> None:
    cut.at = time.time()
    for pipe in pipes:
        pipe.transport.abort()
    cut.done.set()


def _opened_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate
