"""Where an OpenAI-like server is and how to be let in, as one checked record. Keys and headers never print."""

import enum
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from headgate.core.call import Format
from headgate.core.problems import InvalidSettings, Review
from headgate.core.spelling import unknown_key
from headgate.providers import addresses
from headgate.transport import Endpoint as Target
from headgate.transport.endpoint import Origin, split_url

OPENAI_URL: Final = "https://api.openai.com/v1"
_OPENAI: Final[Origin] = split_url(OPENAI_URL)[0]
_OWN_HEADERS: Final[Mapping[str, str]] = {
    "content-type": "application/json",
    "accept": "application/json",
    "user-agent": "headgate",
}
_VERSION: Final = re.compile(r"v[0-9]\w*")
_SHORTEST_SECRET_CHARS: Final = 6
"""Shorter values would be found in any text."""


class Auth(enum.StrEnum):
    """How the key travels."""

    BEARER = "bearer"
    """`Authorization: Bearer …`"""
    API_KEY = "api-key"
    """`api-key: …`, as Azure wants it"""


@dataclass(frozen=True, kw_only=True)
class OpenAIOptions:
    """One server and one key."""

    base_url: str = OPENAI_URL
    """Up to and with the version path, as in the official SDK: `http://host:8000/v1`."""
    api_key: str | None = field(default=None, repr=False)
    """None: a server that asks for none."""
    auth: Auth = Auth.BEARER
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request."""
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to every URL: `{api-version: "2024-10-21"}`."""
    ca_file: str | None = None
    """The authority that signed the server's certificate, in place of the system's. Used by the transport."""

    def __post_init__(self) -> None:
        review = Review()
        addresses.check_base_url(review, self.base_url)
        addresses.check_secret(review, "api_key", self.api_key)
        review.choice("auth", self.auth, Auth)
        addresses.check_headers(review, self.headers)
        addresses.check_query(review, self.query)
        addresses.check_ca_file(review, self.ca_file)
        if not review.problems:
            self._check_together(review)
        review.refuse()

    def target(self, path: str, method: str = "POST") -> Target:
        """The prepared request for one of the endpoints, the key in it."""
        own = {**_OWN_HEADERS, **self._key_header()}
        headers = addresses.with_headers(own, self.headers)
        return addresses.endpoint_of(
            self.base_url, f"/{path}", headers=headers, query=self.query, method=method
        )

    def with_version(self) -> "OpenAIOptions | None":
        """The same server under the version path that `base_url` lacks; None where it has one."""
        parts = urllib.parse.urlsplit(self.base_url)
        if any(_VERSION.fullmatch(segment) for segment in parts.path.split("/")):
            return None
        return replace(self, base_url=parts._replace(path=f"{parts.path.rstrip('/')}/v1").geturl())

    def secrets(self) -> tuple[str, ...]:
        """What must not stand in a message, the longest first."""
        values = {self.api_key or "", *self.headers.values(), *self.query.values()}
        long_enough = [value for value in values if len(value) >= _SHORTEST_SECRET_CHARS]
        return tuple(sorted(long_enough, key=len, reverse=True))

    def _key_header(self) -> dict[str, str]:
        if self.api_key is None:
            return {}
        if self.auth == Auth.API_KEY:
            return {"api-key": self.api_key}
        return {"authorization": f"Bearer {self.api_key}"}

    def _check_together(self, review: Review) -> None:
        given = {name.lower(): name for name in self.headers}
        if "content-type" in given:
            review.add(f"headers.{given['content-type']}", "is always application/json; leave it out")
        for name in self._key_header().keys() & given.keys():
            review.add(f"headers.{given[name]}", "is set by api_key; leave out one of the two")
        for endpoint in Format:
            if self.base_url.rstrip("/").endswith(f"/{endpoint}"):
                review.add("base_url", f"must end before /{endpoint}: that part is added")
                return
        if self.api_key is None and "authorization" not in given and split_url(self.base_url)[0] == _OPENAI:
            review.add("api_key", 'is missing, and OpenAI asks for one; for example "${OPENAI_API_KEY}"')


_OPTIONS: Final = frozenset(option.name for option in fields(OpenAIOptions))


def read_options(given: Mapping[str, Any]) -> OpenAIOptions:
    """The record of an upstream's options. Unknown names are reported together with all other mistakes."""
    review = Review()
    for name in given:
        if name not in _OPTIONS:
            review.add(str(name), unknown_key(str(name), _OPTIONS))
    try:
        options = OpenAIOptions(**{name: value for name, value in given.items() if name in _OPTIONS})
    except InvalidSettings as error:
        raise InvalidSettings([*review.problems, *error.problems]) from None
    review.refuse()
    return options
