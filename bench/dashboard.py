"""What an open dashboard costs: processor time for each request with one open, and with none, in turns.

Run: python bench/dashboard.py. It takes about a minute. The gateway works on a core of its own, as fast as it can; the load, the
upstream and the one who looks at the overview share another. Linux only.
"""

import contextlib
import http.client
import statistics
import sys
import threading
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlencode

from figures import Figure, run_sections
from gateway_stage import Gateway, chat, staged, to_gateway
from http_load import Load, closed_load

ROUNDS: Final = 10
SECONDS: Final = 2.0
CONNECTIONS: Final = 16
MOST_MORE: Final = 0.03


@contextlib.contextmanager
def looking(gateway: Gateway, seen: list[int]) -> Iterator[None]:
    """Somebody has the overview open; `seen` gets the bytes of every change they were sent."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
    connection.request("GET", "/dashboard/live?page=%2F", headers={"cookie": logged_in(gateway)})
    stream = connection.getresponse()
    assert connection.sock is not None
    own = connection.sock

    def read() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            while line := stream.readline():
                if line.startswith(b"data: {"):
                    seen.append(len(line))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            own.shutdown(2)
        reader.join()
        connection.close()


def logged_in(gateway: Gateway) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
    kind = "application/x-www-form-urlencoded"
    headers = {"origin": f"http://127.0.0.1:{gateway.port}", "content-type": kind}
    connection.request("POST", "/login", urlencode({"key": gateway.key}), headers)
    answer = connection.getresponse()
    cookie = answer.getheader("set-cookie")
    connection.close()
    if cookie is None:
        raise RuntimeError(f"the login was answered with {answer.status}")
    return cookie.partition(";")[0]


def cost() -> Iterator[Figure]:
    alone: list[Load] = []
    watched: list[Load] = []
    seen: list[int] = []
    with staged() as stage, stage.gateway() as gateway:
        asked = to_gateway(gateway, chat("instant"))
        for _ in range(ROUNDS):
            alone.append(stage.run(closed_load, *asked, CONNECTIONS, SECONDS))
            with looking(gateway, seen):
                watched.append(stage.run(closed_load, *asked, CONNECTIONS, SECONDS))
    with_us, without_us = (statistics.median(load.core_us for load in loads) for loads in (watched, alone))
    more = with_us / without_us - 1
    yield Figure(
        what=f"processor time of a request, overview open ({ROUNDS} + {ROUNDS} runs)",
        asked=f"≤ {MOST_MORE:.0%} more",
        measured=f"{with_us:.1f} µs",
        beside=f"no dashboard {without_us:.1f} µs",
        ratio=f"{more:+.1%}",
        score=MOST_MORE / max(more, 1e-9),
    )
    per_s = len(seen) / (ROUNDS * SECONDS)
    yield Figure(
        what="changes sent to the open page",
        measured=f"{per_s:.1f}/s",
        beside=f"{statistics.mean(seen):,.0f} bytes each",
    )


if __name__ == "__main__":
    sys.exit(
        run_sections(
            {"cost": cost}, sys.argv[1:], "headgate serve, six models, an upstream that answers at once"
        )
    )
