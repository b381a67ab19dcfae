"""One question to a gateway that serves: a request, and its answer as JSON."""

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from headgate.cli.running import settings_to_look
from headgate.core.errors import HeadgateError, ProviderFailure, Refused
from headgate.settings import Settings
from headgate.transport import Endpoint, Limits, Transport

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="HEADGATE_URL",
        metavar="URL",
        help="The gateway to ask; default: where the settings say that it listens.",
    ),
]
PATIENCE_S: Final = 10.0
_LIMITS: Final = Limits(connect_s=3.0, total_s=PATIENCE_S)
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound
_NOT_NOW: Final = frozenset({429, 503})


class NobodyThere(Refused):
    """Nothing answers at the gateway's address."""

    code = "upstream_unavailable"


def ask(url: str, path: str, body: object = None) -> Any:
    """GET, or POST where there is a body. What the gateway refuses is raised in its own words."""
    return asyncio.run(_ask(url, path, body))


def gateway_url(url: str | None, config: Path | None) -> str:
    return (url or _listening(settings_to_look(config))).rstrip("/")


def _listening(settings: Settings) -> str:
    address = settings.address
    host = _EVERYWHERE.get(address.host, address.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{address.port}"


async def _ask(url: str, path: str, body: object) -> Any:
    key = os.environ.get("HEADGATE_API_KEY", "")
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    transport = Transport()
    try:
        endpoint = Endpoint(url + path, method="GET" if body is None else "POST", headers=headers)
        sent = b"" if body is None else msgspec.json.encode(body)
        with await transport.send(endpoint, sent, limits=_LIMITS) as response:
            return _read(response.status, await response.read(), url)
    except ProviderFailure as error:
        raise NobodyThere(
            f"no gateway answers at {url} ({error}). Is headgate serve running there? --url or HEADGATE_URL names another.",
            retry_after_s=1.0,
        ) from None
    finally:
        await transport.aclose()


def _read(status: int, body: bytes, url: str) -> Any:
    try:
        told = msgspec.json.decode(body)
    except msgspec.DecodeError:
        told = None
    if 200 <= status < 300 and told is not None:
        return told
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict):
        raise HeadgateError(f"{url} answered {status}, and not as a gateway does; is it one?")
    words = str(error.get("message"))
    if status == 401 and not os.environ.get("HEADGATE_API_KEY"):
        words += "; put a key into HEADGATE_API_KEY"
    if status in _NOT_NOW:
        raise Refused(words, retry_after_s=1.0)
    raise HeadgateError(words)
