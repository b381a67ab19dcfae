"""A served gateway and somebody who looks at its pages, as a browser would ask for them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, Final
from urllib.parse import urlencode

import httpx
from server.locked_stage import Locked, locked
from server.stage import House, opened
from stage import until_closed

from headgate.calls.status import UpstreamStatus
from headgate.core.alerts import Alert
from headgate.core.call import Lane
from headgate.core.events import AttemptEnded, Event, Responded
from headgate.core.failures import Failure, FailureKind
from headgate.core.hold import Condition
from headgate.server.dashboard.upstreams import UpstreamView

HOSTILE: Final = (
    "<script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    '"><svg onload=window.pwned=1>',
    "'-window.pwned=1-'",
    "javascript:window.pwned=1",
    "</title><script>window.pwned=1</script>",
    "{{7*7}}${7*7}<%= 7*7 %>",
    "<a href=javascript:window.pwned=1>click</a>",
    "a?b#c/../d&e=f%41",
    "\u202e<b>\u0000</b>",
)
PAGES: Final = ("/", "/models", "/requests", "/alerts", "/requests?q=nobody", "/models?q=nobody")
MODELS: Final = {
    "m": {"upstreams": [{"provider": "simulated", "latency_s": 0}]},
    "limited": {
        "upstreams": [
            {"provider": "simulated", "latency_s": 0, "outcome": {"status": 429, "retry_after_s": 30}}
        ],
    },
}


class Reader(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def read_html(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    return reader


@dataclass
class Bell:
    """Alerts that a test has made up."""

    firing: Sequence[Alert] = ()
    cleared: Sequence[Alert] = ()

    def active(self) -> Sequence[Alert]:
        return self.firing

    def recent(self) -> Sequence[Alert]:
        return self.cleared


@dataclass
class Screen:
    """Somebody at a browser. `http` keeps their cookies."""

    house: House
    http: httpx.AsyncClient

    async def page(self, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(path, headers={"accept": "text/html", **headers})

    async def post(self, path: str, form: dict[str, str] | None = None, **headers: str) -> httpx.Response:
        """As our own page sends it, unless the headers say otherwise."""
        told = {
            "content-type": "application/x-www-form-urlencoded",
            **(headers or {"origin": self.house.url}),
        }
        return await self.http.post(path, content=urlencode(form or {}), headers=told)

    async def throttle(self) -> None:
        """From now on the model `limited` is closed."""
        await until_closed(self.house.gateway, "limited")

    async def log_in(self, key: str) -> httpx.Response:
        return await self.post("/login", {"key": key})

    def tell(self, *events: Event) -> None:
        """As the gateway's own parts do."""
        for event in events:
            self.house.gateway._fanout(event)


@asynccontextmanager
async def a_screen(**settings: Any) -> AsyncIterator[Screen]:
    """A gateway without keys."""
    alerts = settings.pop("alerts", None)
    async with (
        opened({"models": MODELS, **settings}, alerts=alerts) as house,
        httpx.AsyncClient(base_url=house.url) as http,
    ):
        yield Screen(house, http)


@asynccontextmanager
async def a_locked_screen(**settings: Any) -> AsyncIterator[tuple[Screen, Locked]]:
    """A gateway whose pages ask for a key."""
    async with locked(models=MODELS, **settings) as gateway:
        await gateway.key(name="first")
        async with httpx.AsyncClient(base_url=gateway.house.url) as http:
            yield Screen(gateway.house, http), gateway


def responded(request_id: str = "r1", **changes: Any) -> Responded:
    told: dict[str, Any] = {
        "request_id": request_id,
        "agent_id": None,
        "model": "m",
        "upstream": "simulated",
        "lane": Lane.INTERACTIVE,
        "attempts": 1,
        "latency_ms": 100.0,
        "queue_ms": 5.0,
        **changes,
    }
    return Responded(**told)


def failed_attempt(request_id: str = "r1", **changes: Any) -> AttemptEnded:
    told: dict[str, Any] = {
        "request_ids": (request_id,),
        "model": "m",
        "upstream": "simulated",
        "attempt": 1,
        "duration_ms": 20.0,
        "failure": Failure(kind=FailureKind.TRANSIENT, status=503),
        **changes,
    }
    return AttemptEnded(**told)


def an_alert(message: str = "something is wrong", **changes: Any) -> Alert:
    told: dict[str, Any] = {
        "rule": "breaker_open",
        "subject": "m",
        "message": message,
        "value": 7.0,
        "threshold": 5.0,
        "fired_at": 1_800_000_000.0,
        "cleared_at": None,
        **changes,
    }
    return Alert(**told)


def a_view(
    *, budget: float = 1.0, strict: bool = False, mistake: Failure | None = None, **status: Any
) -> UpstreamView:
    """An idle upstream, but for what is said."""
    told: dict[str, Any] = {
        "model": "summary",
        "upstream": "openai",
        "condition": Condition.OK,
        "pause_s": 0.0,
        "stopped": False,
        "rt_queue": 0,
        "be_queue": 0,
        "total_slots": 4,
        "available_slots": 4,
        "accepting": True,
        "max_queue_depth": 20,
        **status,
    }
    return UpstreamView(UpstreamStatus(**told), budget, strict, mistake)
