"""A name server that answers, says that a name is unknown, or does not answer at all: what the system's resolver meets."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class NameServer:
    """`*.test` leads to this machine, unless the name is among those that hang or fail. All else is the system's."""

    def __init__(self, resolver: Callable[..., Any]) -> None:
        self.asked: list[str] = []
        self.unanswered = 0
        """Lookups that hang now."""
        self.hangs: Callable[[str], bool] = lambda host: host.startswith("hanging")
        self.fails = False
        self._system = resolver
        self._over = threading.Event()

    def getaddrinfo(self, host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if not name.endswith(".test"):
            return self._system(host, port, *arguments, **options)
        self.asked.append(name)
        if self.hangs(name):
            self.unanswered += 1
            self._over.wait()
            self.unanswered -= 1
        if self.fails or self._over.is_set():
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port or 0))]

    def end(self) -> None:
        self._over.set()


@contextmanager
def name_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """In the place of the system's resolver, which is where every lookup of every event loop ends."""
    server = NameServer(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    try:
        yield server
    finally:
        server.end()
