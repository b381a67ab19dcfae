"""A gateway from afar: which one a command means, and the one place where a client is opened for it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
import typer

from headgate.cli.running import settings_to_look
from headgate.client import AsyncClient, GatewayUnreachable
from headgate.client.address import read_address
from headgate.client.answers import unlike_a_gateway
from headgate.core.errors import Unauthorized
from headgate.core.retry import RetryPolicy
from headgate.settings import Settings

T = TypeVar("T")
VARIABLE: Final = "HEADGATE_URL"
KEY_VARIABLE: Final = "HEADGATE_API_KEY"
LOOK_S: Final = 10.0
"""How long one look may take."""
UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="The gateway to ask; default: HEADGATE_URL.")
]
_ONCE: Final = RetryPolicy(max_attempts=1)
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound


def named_url(url: str | None, config: Path | None) -> str | None:
    """The gateway that was named; None: the database is meant. Settings that are named beat a variable."""
    named = url or (None if config is not None else os.environ.get(VARIABLE))
    return read_address(named) if named else None


def gateway_url(url: str | None, config: Path | None) -> str:
    """The gateway that was named, else the one that listens where the settings say."""
    return named_url(url, config) or _listening(settings_to_look(config))


def run_there(url: str, action: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Do this with a client of the gateway there, which is tried again as clients do.

    Its key is HEADGATE_API_KEY's: one on the command line could be read by everybody on the machine.
    """
    return _run(lambda: AsyncClient(url), action)


def look_there(url: str, action: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """The same for somebody at the keyboard who only looks: told at once when nobody is there."""
    return _run(lambda: AsyncClient(url, retry=_ONCE, timeout_s=LOOK_S), action)


async def first(found: AsyncGenerator[T, None], count: int) -> tuple[Sequence[T], bool]:
    """So many at most, and whether there are more."""
    taken: list[T] = []
    async with contextlib.aclosing(found):
        async for one in found:
            if len(taken) == count:
                return taken, True
            taken.append(one)
    return taken, False


def shaped(told: Any, kind: type[T]) -> T:
    """What a gateway told, as the record it stands for."""
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise unlike_a_gateway("what was asked", error) from error


def _run(opening: Callable[[], AsyncClient], action: Callable[[AsyncClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with opening() as client:
            return await action(client)

    with _advised():
        return asyncio.run(main())


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    """What a client cannot know: how a command is given another gateway, and a key."""
    try:
        yield
    except GatewayUnreachable as error:
        if not error.waiting_helps:
            error.args = (f"{error} --url or {VARIABLE} names another gateway.",)
        raise
    except Unauthorized as error:
        if os.environ.get(KEY_VARIABLE):
            raise
        raise Unauthorized(
            f"{error}; put a key into {KEY_VARIABLE}. To make one: headgate keys create NAME --role operate"
        ) from error


def _listening(settings: Settings) -> str:
    address = settings.address
    return f"http://{replace(address, host=_EVERYWHERE.get(address.host, address.host))}"
