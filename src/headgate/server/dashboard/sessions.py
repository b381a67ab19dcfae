"""Who has logged in with a key. Kept in memory: a restart logs everybody out."""

from collections.abc import Callable
from typing import Final

from headgate.server.access import Access, Caller

LONGEST_S: Final = 12 * 3600.0
MOST_EACH: Final = 20
"""Of one key: whoever logs in again and again ends their own sessions, not those of others."""


class Sessions:
    """A random id for each login. The key is asked for again at every look: a revoked one ends its sessions."""

    def __init__(self, access: Access, now: Callable[[], float], new_id: Callable[[], str]) -> None:
        self._access = access
        self._now = now
        self._new_id = new_id
        self._open: dict[str, tuple[Caller, float]] = {}

    def open(self, caller: Caller) -> str:
        living = [one for one in list(self._open) if self.find(one) is caller]
        for one in living[: 1 - MOST_EACH]:
            self.close(one)
        session_id = self._new_id() + self._new_id()
        self._open[session_id] = (caller, self._now() + LONGEST_S)
        return session_id

    def find(self, session_id: str) -> Caller | None:
        caller, ends_at = self._open.get(session_id, (None, 0.0))
        if caller is None:
            return None
        if self._now() < ends_at and self._access.still_admits(caller):
            return caller
        self.close(session_id)
        return None

    def close(self, session_id: str) -> None:
        self._open.pop(session_id, None)
