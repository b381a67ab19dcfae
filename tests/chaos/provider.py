"""An upstream in OpenAI's format that keeps its own count: each answer holds its prompt and the number of its call."""

import asyncio
import json
import random
import time
from typing import Any, Final, Self

from chaos.books import Call
from providers.stubs.scripted import _read_request

PIECES: Final = 4
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"


class Provider:
    """Each node has an address of its own here, so that a call says which node made it."""

    def __init__(
        self, calls: list[Call], chance: random.Random, *, delay_s: float = 0.1, failing: float = 0.0
    ) -> None:
        self.calls = calls
        self.delay_s = delay_s
        self.delays: dict[str, float] = {}
        """Another delay for prompts that begin with this."""
        self.failing = failing
        """The share of calls that fail with a 500, by its own seeded schedule."""
        self.failures: dict[str, int] = {}
        """How many calls for prompts that begin with this fail, from now on."""
        self._chance = chance
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def url(self, node: str) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/{node}/v1"

    def made(self, prompt: str) -> list[Call]:
        return [call for call in self.calls if call.prompt == prompt]

    async def arrival(self, prompt: str, count: int = 1, within_s: float = 30.0) -> Call:
        """The prompt's call of this number, as soon as it has arrived."""
        async with asyncio.timeout(within_s):
            while len(self.made(prompt)) < count:  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
        return self.made(prompt)[count - 1]

    async def working_for(self, node: str, within_s: float = 30.0) -> None:
        """Until this node has a call in flight."""
        async with asyncio.timeout(within_s):
            while not any(call.by == node and call.ended is None for call in self.calls):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            while not writer.is_closing() and (seen := await _read_request(reader)) is not None:
                prompt = seen.body["messages"][-1]["content"]
                call = Call(prompt, len(self.calls) + 1, seen.path.split("/")[1], time.time())
                self.calls.append(call)
                fails = self._is_to_fail(prompt)
                await self._answer(call, fails=fails, stream=bool(seen.body.get("stream")), writer=writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _is_to_fail(self, prompt: str) -> bool:
        for start, count in self.failures.items():
            if prompt.startswith(start) and count:
                self.failures[start] -= 1
                return True
        return self._chance.random() < self.failing

    async def _answer(self, call: Call, *, fails: bool, stream: bool, writer: asyncio.StreamWriter) -> None:
        delay_s = next((s for start, s in self.delays.items() if call.prompt.startswith(start)), self.delay_s)
        try:
            if fails:
                await self._wait(writer, delay_s)
                body = json.dumps({"error": {"message": "as planned", "type": "server_error"}}).encode()
                writer.write(_head(500, JSON, len(body)) + body)
            elif stream:
                await self._stream(call, writer, delay_s)
            else:
                await self._wait(writer, delay_s)
                body = json.dumps(_completion(_words(call))).encode()
                writer.write(_head(200, JSON, len(body)) + body)
            await writer.drain()
            call.how = "failed" if fails else "whole"
        except OSError:
            call.how = "left"
        finally:
            call.ended = time.time()

    async def _stream(self, call: Call, writer: asyncio.StreamWriter, delay_s: float) -> None:
        writer.write(_head(200, EVENTS, None))
        words = _words(call)
        size = -(-len(words) // PIECES)
        for start in range(0, len(words), size):
            writer.write(_event(_chunk({"content": words[start : start + size]})))
            await self._wait(writer, delay_s / PIECES)
        writer.write(_event(_chunk({}, finish_reason="stop")) + _piece(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def _wait(self, writer: asyncio.StreamWriter, seconds: float) -> None:
        """As long as it takes, unless the caller leaves first: that is seen at once, as a real server sees it."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            if writer.is_closing():
                raise ConnectionResetError
            await asyncio.sleep(min(left_s, 0.05))


def _words(call: Call) -> str:
    return f"answer no. {call.number} to <{call.prompt}>"


def _completion(content: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "x",
        "choices": [choice],
        "usage": usage,
    }


def _chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "x", "choices": [choice]}


def _head(status: int, kind: str, length: int | None) -> bytes:
    how = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"HTTP/1.1 {status} Chaos\r\nContent-Type: {kind}\r\n{how}\r\n\r\n".encode()


def _event(chunk: dict[str, Any]) -> bytes:
    return _piece(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
