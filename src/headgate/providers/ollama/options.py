"""How an Ollama server is reached and how it keeps the model, as one checked record.

`base_url` may be written as in `OLLAMA_HOST`: `0.0.0.0:11434`, `gpu-box`, `:8080`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from headgate.core.problems import Review
from headgate.core.spelling import did_you_mean
from headgate.formats.ollama.requests import MODEL_OPTIONS
from headgate.providers.addresses import check_base_url, check_headers, check_names

BASE_URL: Final = "http://127.0.0.1:11434"
PORT: Final = 11434
_DURATION: Final = re.compile(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+|0")
# Servers listen on these addresses; not every system can connect to them.
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}  # noqa: S104 - not bound, replaced
_PORT: Final = re.compile(r"(.*):(\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaOptions:
    """`options` are defaults for every call; a request's own parameters win."""

    base_url: str = BASE_URL
    keep_alive: str | float | None = None
    """How long the model stays loaded after a call: `10m`, seconds, −1 for ever; None: as the server is set."""
    options: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        review = Review()
        check_base_url(review, self.base_url)
        check_keep_alive(review, self.keep_alive)
        _check_model_options(review, self.options)
        check_headers(review, self.headers)
        review.refuse()


def read_options(given: Mapping[str, Any]) -> OllamaOptions:
    """The record out of an upstream's options; every mistake is in the one error raised."""
    check_names("ollama", given, [option.name for option in fields(OllamaOptions)])
    host = given.get("base_url")
    return OllamaOptions(**{**given, "base_url": server_url(host)} if isinstance(host, str) else given)


def server_url(host: str) -> str:
    """The URL for a host as people write it for Ollama's own tools."""
    scheme, found, rest = host.strip().partition("://")
    if not found:
        scheme, rest = "http", host.strip()
    authority, slash, path = rest.partition("/")
    with_port = _PORT.fullmatch(authority)
    name, port = with_port.groups() if with_port else (authority, "" if found else str(PORT))
    name = _ANY_ADDRESS.get(name, name)
    return f"{scheme}://{name}{':' if port else ''}{port}{slash}{path}"


def check_keep_alive(review: Review, value: object) -> None:
    if isinstance(value, str):
        if _DURATION.fullmatch(value) is None:
            review.add(
                "keep_alive",
                f"must be a duration such as 10m or 1h30m, or a number of seconds, not {value[:40]!r}",
            )
    else:
        review.number("keep_alive", value, least=float("-inf"))


def _check_model_options(review: Review, given: object) -> None:
    if not isinstance(given, Mapping):
        review.add("options", f"must map names to values, not {given!r}")
        return
    for name in given:
        if name not in MODEL_OPTIONS:
            review.add(f"options.{name}", f"is no option of Ollama's{did_you_mean(str(name), MODEL_OPTIONS)}")
