"""What an open dashboard costs: processor time for each request with one open, and with none, in turns.

Run: python bench/dashboard.py. It takes about a minute. The gateway works on a core of its own, as fast as it can; the load, the
upstream and the one who looks at the overview share another. Linux only.
"""

import contextlib
import http.client
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlencode

from figures import Figure, run_sections
from gateway_stage import Gateway, chat, staged, to_gateway
from http_load import Load, closed_load
from processes import processor_s

ROUNDS: Final = 10
SECONDS: Final = 2.0
CONNECTIONS: Final = 16
MOST_MORE: Final = 0.03
ALONE_S: Final = 5.0


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
    """Each round's two runs are compared with each other: what disturbs the machine for long disturbs both."""
    alone: list[Load] = []
    watched: list[Load] = []
    seen: list[int] = []
    with staged() as stage, stage.gateway() as gateway:
        asked = to_gateway(gateway, chat("instant"))
        for _ in range(ROUNDS):
            alone.append(stage.run(closed_load, *asked, CONNECTIONS, SECONDS))
            with looking(gateway, seen):
                watched.append(stage.run(closed_load, *asked, CONNECTIONS, SECONDS))
        yield _more(alone, watched)
        yield _by_itself(gateway)
    yield Figure(
        what="changes sent to the open page",
        measured=f"{len(seen) / (ROUNDS * SECONDS):.1f}/s",
        beside=f"{statistics.mean(seen):,.0f} bytes each",
    )


def _more(alone: Sequence[Load], watched: Sequence[Load]) -> Figure:
    ratios = sorted(one.core_us / other.core_us - 1 for one, other in zip(watched, alone, strict=True))
    more = statistics.median(ratios)
    return Figure(
        what=f"processor time of a request, overview open, {ROUNDS} pairs",
        asked=f"≤ {MOST_MORE:.0%} more",
        measured=f"{more:+.1%}",
        beside=f"the pairs {ratios[0]:+.1%} … {ratios[-1]:+.1%}",
        score=MOST_MORE / max(more, 1e-9),
    )


def _by_itself(gateway: Gateway) -> Figure:
    """What it takes of a core while nobody asks anything: the part that does not grow with the traffic."""

    def spent_ms() -> float:
        before_s = processor_s(gateway.pid)
        time.sleep(ALONE_S)
        return (processor_s(gateway.pid) - before_s) / ALONE_S * 1000

    idle_ms = spent_ms()
    with looking(gateway, []):
        time.sleep(1.0)
        open_ms = spent_ms()
    return Figure(
        what="processor time of an open overview, no traffic",
        measured=f"{open_ms:.1f} ms/s",
        beside=f"no dashboard {idle_ms:.1f} ms/s",
    )


if __name__ == "__main__":
    sys.exit(
        run_sections(
            {"cost": cost}, sys.argv[1:], "headgate serve, six models, an upstream that answers at once"
        )
    )
