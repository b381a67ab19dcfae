"""Load over HTTP: kept connections, each asking again as soon as it was answered. Raw sockets, one thread, no parsing.

It knows an answer's end by its last bytes, so that the measuring side costs as little as Python allows.
"""

import select
import socket
import statistics
import time
from collections import Counter
from typing import NamedTuple

from processes import processor_s

WARM_S = 0.4
ENDING = b"}}"
"""How answers and refusals end: `…"usage":{…}}`, `{"error":{…}}`."""


class Load(NamedTuple):
    """What came of it. `core_us`: processor time of the measured process for each answer."""

    per_s: float
    p50_ms: float
    p99_ms: float
    core_us: float
    statuses: dict[str, int]


def request_bytes(path: str, body: bytes, key: str | None = None) -> bytes:
    """A request as a small client would send it."""
    authorization = f"authorization: Bearer {key}\r\n" if key else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{authorization}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Clients:
    """All connections in one loop of the kernel's."""

    def __init__(self, port: int, request: bytes, connections: int) -> None:
        self._request = request
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._begun: dict[int, float] = {}
        self._statuses: Counter[bytes] = Counter()
        for _ in range(connections):
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[client.fileno()] = client
            self._epoll.register(client.fileno(), select.EPOLLIN)
            self._begun[client.fileno()] = time.perf_counter()
            client.sendall(request)

    def run(self, seconds: float) -> list[float]:
        """The seconds that each answer took."""
        took: list[float] = []
        clock, begun, sockets, statuses = time.perf_counter, self._begun, self._sockets, self._statuses
        until = clock() + seconds
        now = 0.0
        while now < until:
            for file, _ in self._epoll.poll(1.0):
                data = sockets[file].recv(65536)
                if data.startswith(b"HTTP"):
                    statuses[data[9:12]] += 1
                if data.endswith(ENDING):
                    now = clock()
                    took.append(now - begun[file])
                    begun[file] = now
                    sockets[file].sendall(self._request)
                elif not data:
                    raise RuntimeError("the server closed a connection in the middle of the measurement")
            now = clock()
        return took

    def statuses(self) -> dict[str, int]:
        return {status.decode(): count for status, count in self._statuses.items()}

    def close(self) -> None:
        for client in self._sockets.values():
            client.close()
        self._epoll.close()


def closed_load(port: int, pid: int, request: bytes, connections: int, seconds: float) -> Load:
    """As fast as it is answered, by so many at once."""
    clients = _Clients(port, request, connections)
    clients.run(WARM_S)
    spent_s, started = -processor_s(pid), time.perf_counter()
    took = clients.run(seconds)
    elapsed_s = time.perf_counter() - started
    spent_s += processor_s(pid)
    clients.close()
    return Load(len(took) / elapsed_s, *percentiles_ms(took), spent_s / len(took) * 1e6, clients.statuses())


def percentiles_ms(took_s: list[float]) -> tuple[float, float]:
    """The median and the 99th."""
    if len(took_s) < 2:
        return (0.0, 0.0)
    cuts = statistics.quantiles(took_s, n=100)
    return cuts[49] * 1000, cuts[98] * 1000
