"""Calls under an idempotency key, whole and streamed: made once, returned to all who ask with the key."""

from collections.abc import Awaitable, Callable

from headgate.calls.call import Announce, RoutedCall
from headgate.calls.keyed_stream import Broadcast, KeyedStream
from headgate.calls.once import Asking, Once
from headgate.calls.requests import Requests
from headgate.calls.stored import decode_reply, encode_reply
from headgate.core.answer import Reply


class KeyedRequests:
    """`body` is the request's, byte by byte: what the key stands for. `scope` is where the key is one key."""

    def __init__(self, requests: Requests, once: Once, join: Callable[[], Awaitable[None]]) -> None:
        self._requests = requests
        self._once = once
        self._join = join
        self._live: dict[tuple[str, str, str], Broadcast] = {}

    async def answer(self, call: RoutedCall, key: str, body: bytes, *, scope: str) -> Reply:
        """The answer that this key has, or gets now. Alone, never in a micro-batch: its crash must be its own."""
        await self._join()
        call.alone = True

        async def ask(announce: Announce) -> Reply:
            call.announce = announce
            return await self._requests.answer(call)

        asking = Asking(ask, encode_reply, decode_reply)
        return await self._once.reply(call.tenant, scope, key, body, asking, deadline=call.deadline)

    async def stream(self, call: RoutedCall, key: str, body: bytes, *, scope: str) -> KeyedStream:
        """The stream that this key has, or gets now; while it is being written, all who ask read it from the start."""
        stream = self._requests.stream(call)
        await self._join()
        place = (call.tenant, scope, key)
        live = self._live.get(place)
        if live is None:
            live = self._live[place] = Broadcast(body)
        elif live.body != body:
            # It will be refused, because the key is taken; the readers of the other, and the next of them, go on.
            live = Broadcast(body)
        live.readers += 1

        async def ask(announce: Announce) -> Reply:
            call.announce = announce
            try:
                return await live.run(stream, call)
            finally:
                forget()

        def forget() -> None:
            if self._live.get(place) is live:
                del self._live[place]

        def leave() -> None:
            live.readers -= 1
            if not live.readers:
                forget()

        asking = Asking(ask, encode_reply, decode_reply)
        # The same place as a whole answer's: a key that comes back with `stream` changed is another request's.
        reply = self._once.reply(call.tenant, scope, key, body, asking, deadline=call.deadline)
        return KeyedStream(call.id, reply, live, leave)
