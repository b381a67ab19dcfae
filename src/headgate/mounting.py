"""How an application is mounted: its tasks and its routes as values. The server makes HTTP of them; an application knows none of it.

Errors that a route raises are answered as everywhere: `HeadgateError`s by their code, all else as 500 without its words.
"""

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from headgate.gateway import Gateway
from headgate.runner.tasks import Task


class AppDoor(enum.StrEnum):
    """Who may come in."""

    CALL = "call"
    """Keys that may ask models and submit jobs."""
    LOOK = "look"
    """Keys that may look at their tenant's own."""
    OPEN = "open"
    """Everybody: for pages without anybody's data."""


class AppKeyed(enum.StrEnum):
    """What a route makes of an Idempotency-Key."""

    IGNORED = "ignored"
    """It looks, or does the same however often it is asked."""
    REFUSED = "refused"
    """400: whoever sends one expects what this route does not keep."""
    OPTIONAL = "optional"
    REQUIRED = "required"
    """400 without one."""


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A query or a body that has nothing to say."""


class AppCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request to an application, let in and read."""

    tenant: str
    """Whose records and jobs it is about; nobody else's may be shown."""
    by: str
    """The name of the key that came, for histories."""
    route: str
    """Which one it came to, as `POST /v1/bookmarks`: an Idempotency-Key belongs to it."""
    path: Mapping[str, str]
    query: Any
    """What `AppRoute.query` says."""
    body: Any
    """What `AppRoute.body` says; None where it says nothing."""
    key: str | None
    """Its Idempotency-Key."""
    deadline_s: float | None
    """How long the caller waits (`X-Headgate-Timeout`); None: it does not say."""
    check_model: Callable[[str], None]
    """Raises when this caller's key may not use the model."""
    used: Callable[[int], None]
    """Told how many tokens the call has cost: they count against the key's tokens per minute."""


class AppReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer: `value` as JSON, or bytes of another type as they are."""

    value: Any = None
    status: int = 200
    media_type: str = "application/json"
    headers: Mapping[str, str] = {}


class AppStream(msgspec.Struct, frozen=True, kw_only=True):
    """Server-sent events. Whatever can be refused must be refused before this is returned: its 200 goes out at once."""

    pieces: AsyncIterator[bytes]
    """What it raises is told as an event `error`, and ends it."""
    close: Callable[[], Awaitable[object]] | None = None
    """Called once, however it ends: also when the client leaves before it has read anything."""


Handle = Callable[[AppCall], Awaitable[AppReply | AppStream]]


class AppRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path, in Starlette's spelling (`/v1/bookmarks/{bookmark_id}`)."""

    method: str
    path: str
    handle: Handle
    door: AppDoor = AppDoor.CALL
    body: Any = None
    """The type of its JSON body, read strictly; None: it takes none."""
    query: type[msgspec.Struct] = Nothing
    keyed: AppKeyed = AppKeyed.IGNORED
    # The rest is for the OpenAPI document.
    summary: str = ""
    answers: Mapping[int, Any] = {}
    """The types of its answers in JSON, by status."""
    media_type: str = "application/json"
    """Of its 200, where that is no JSON."""
    streams: bool = False
    """Its 200 may be server-sent events instead."""
    waits: bool = False
    """It keeps to `AppCall.deadline_s`."""


class App(msgspec.Struct, frozen=True, kw_only=True):
    """An application: what its jobs run, and what it serves once there is a gateway."""

    name: str
    tasks: Sequence[Task[Any, Any]] = ()
    routes: Callable[[Gateway], Sequence[AppRoute]] = lambda _: ()
    failed_runs: Callable[[Gateway], Awaitable[int]] | None = None
    """How many of its latest runs failed one after the other, for an application that runs now and then. Alerts ask."""
    close: Callable[[], object] = lambda: None
    """Called once its tasks have ended, when the gateway closes: for what they keep open in between."""
