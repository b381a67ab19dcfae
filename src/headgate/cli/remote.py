"""A gateway from afar: the one place where a command opens a client for `--url`."""

from typing import Annotated

import typer

from headgate.client import Client

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="The gateway; default HEADGATE_URL, else http://127.0.0.1:8400."
    ),
]


def open_client(url: str | None) -> Client:
    """Its key is HEADGATE_API_KEY's: a key on the command line could be read by everybody on the machine."""
    return Client(url)
