"""Answers back to their askers: request id → future. A done future is left alone, a stranger is a warning."""

import asyncio
import logging
from collections.abc import Callable

from headgate.core.answer import Reply
from headgate.core.call import Call, Request
from headgate.core.errors import DuplicateRequest

logger = logging.getLogger("headgate")


class ResponseRouter:
    """Knows who waits for which answer. Both tables are empty when nobody waits."""

    def __init__(self, on_stray: Callable[[str], None] | None = None) -> None:
        self._requests: dict[str, Call | Request] = {}
        self._futures: dict[str, asyncio.Future[Reply]] = {}
        self._on_stray = on_stray

    def __len__(self) -> int:
        return len(self._futures)

    @property
    def pending(self) -> frozenset[str]:
        """The ids that are waited for."""
        return frozenset(self._requests) | frozenset(self._futures)

    def register(self, request: Call | Request, future: asyncio.Future[Reply]) -> None:
        """Remember who asked. An id names one request at a time."""
        if request.id in self._futures:
            raise DuplicateRequest(request.id)
        self._requests[request.id] = request
        self._futures[request.id] = future
        # Whatever ends the future (an answer, an error, a cancelled asker), its id is free again.
        future.add_done_callback(lambda _: self._unregister(request.id, future))

    def resolve(self, reply: Reply) -> bool:
        """Hand a reply to its asker; False when nobody waits for it any more."""
        future = self._take(reply.request_id)
        if future is None:
            return False
        future.set_result(reply)
        return True

    def resolve_error(self, request_id: str, error: BaseException) -> bool:
        """Hand an error to its asker; False when nobody waits for it any more."""
        future = self._take(request_id)
        if future is None:
            return False
        future.set_exception(error)
        return True

    def stray(self, request_id: str) -> None:
        """An answer for which nobody waits: said aloud, never raised."""
        logger.warning("an answer came for request id %r, for which nobody waits", request_id[:255])
        if self._on_stray is not None:
            self._on_stray(request_id)

    def _take(self, request_id: str) -> asyncio.Future[Reply] | None:
        future = self._futures.get(request_id)
        if future is None:
            self.stray(request_id)
            return None
        self._unregister(request_id, future)
        return None if future.done() else future

    def _unregister(self, request_id: str, future: asyncio.Future[Reply]) -> None:
        if self._futures.get(request_id) is future:
            del self._futures[request_id]
            del self._requests[request_id]
