"""A provider whose every answer is another one, and comes when the test lets it."""

import asyncio
from typing import Final

from providers.stubs.openai import OpenAIStub, completion, error, events, stream
from providers.stubs.scripted import Reply

SPLIT_BYTES: Final = len(b"NE]\n\n")


class NumberedStub(OpenAIStub):
    """Call 3 is answered with "answer 3". A stream begins at once; its rest, or a whole answer, waits for `let`."""

    def __init__(self) -> None:
        super().__init__(Reply())
        self._failing: set[int] = set()
        self._let: set[int] = set()
        self._open = False
        self._changed = asyncio.Condition()

    def let(self, number: int) -> None:
        self._let.add(number)
        self._wake()

    def let_all(self) -> None:
        self._open = True
        self._wake()

    def hold_all(self) -> None:
        self._open = False

    def fail(self, number: int) -> None:
        """This call fails, before anything of it was sent."""
        self._failing.add(number)

    def forget(self) -> None:
        self.requests.clear()
        self._let.clear()

    def _wake(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._waking = asyncio.get_running_loop().create_task(notify())

    async def _answer(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        number = len(self.requests)
        text = f"answer {number}"
        if number in self._failing:
            return await self._finish(number, error(500), reader, writer)
        if not self.requests[-1].body.get("stream"):
            whole = completion({"content": text}, id=f"chatcmpl-{number}")
            return await self._finish(number, whole, reader, writer)
        pieces = events({"content": text}, {"content": "!"})
        begun = stream(pieces[:2])
        lines = ["HTTP/1.1 200 Scripted", "Transfer-Encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in begun.headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        _write_chunk(writer, begun.body)
        await writer.drain()
        if not await self._may(number, reader):
            return False
        rest = b"".join(pieces[2:])
        # The end marker comes in two pieces: a gateway must know it all the same.
        _write_chunk(writer, rest[:-SPLIT_BYTES])
        await writer.drain()
        await asyncio.sleep(0.02)
        _write_chunk(writer, rest[-SPLIT_BYTES:])
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _finish(
        self, number: int, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        return await self._may(number, reader) and await super()._answer(reply, reader, writer)

    async def _may(self, number: int, reader: asyncio.StreamReader) -> bool:
        """Wait until this answer may come; False when its caller has left instead."""

        async def allowed() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: self._open or number in self._let)

        waiting = asyncio.create_task(allowed())
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.done()
        finally:
            waiting.cancel()
            leaving.cancel()
            await asyncio.wait({waiting, leaving})


def _write_chunk(writer: asyncio.StreamWriter, body: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(body), body))
