"""The front door: where the server listens, and what it puts up with."""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from headgate.core.problems import Review
from headgate.core.waiting import MAX_BYTES

LISTEN: Final = "127.0.0.1:8400"
LARGEST_BODY_BYTES: Final = 2**31 - 1
MOST_CONNECTIONS: Final = 1_000_000
LARGEST_DISK_BYTES: Final = 2**53
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<host>[^\[\]:]*)):(?P<port>[0-9]{1,5})")
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_LARGEST_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0 lets the system choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much and how long a client may take."""

    body_bytes: int = 20 * 1024 * 1024
    file_bytes: int = 200 * 1024 * 1024
    """Files for batches are larger than any other body, and go to the disk as they come."""
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    drain_s: float = 30.0
    connections: int = 10_000
    waiting_bytes: int = MAX_BYTES
    """The bodies of all calls that wait; one tenant may have half of it."""
    tenant_bytes: int = 10 * 1024**3
    """What a tenant may store: files, inputs, results, answers under idempotency keys, records."""
    min_free_bytes: int = 1024**3
    """With less free where the data is, no new durable work is accepted; 0: no floor."""

    def __post_init__(self) -> None:
        review = Review()
        review.number("body_bytes", self.body_bytes, least=1, most=LARGEST_BODY_BYTES, whole=True)
        review.number("file_bytes", self.file_bytes, least=1, most=LARGEST_BODY_BYTES, whole=True)
        review.number("header_timeout_s", self.header_timeout_s, above=0, most=3600)
        review.number("body_timeout_s", self.body_timeout_s, above=0, most=3600)
        review.number("drain_s", self.drain_s, most=3600)
        review.number("connections", self.connections, least=1, most=MOST_CONNECTIONS, whole=True)
        review.number("waiting_bytes", self.waiting_bytes, least=1, most=LARGEST_DISK_BYTES, whole=True)
        review.number("tenant_bytes", self.tenant_bytes, least=1, most=LARGEST_DISK_BYTES, whole=True)
        review.number("min_free_bytes", self.min_free_bytes, most=LARGEST_DISK_BYTES, whole=True)
        review.refuse()


def read_address(text: str) -> Address:
    """`127.0.0.1:8400`, `localhost:8400`, `[::1]:8400`; ValueError says what is wrong."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(_malformed(text))
    port = int(match["port"])
    if port > _LARGEST_PORT:
        raise ValueError(f"must have a port of at most {_LARGEST_PORT}, not {port}")
    if match["six"] is not None:
        return Address(str(_six(match["six"])), port)
    return Address(_host(match["host"]), port)


def listen_mistake(value: object) -> str | None:
    if not isinstance(value, str):
        return f"must be text, not of type {type(value).__name__}"
    try:
        read_address(value)
    except ValueError as error:
        return str(error)
    return None


def _malformed(text: str) -> str:
    if text.count(":") > 1 and "[" not in text:
        return f"must have an IPv6 address in brackets, such as '[::1]:8400', not {text[:100]!r}"
    if text.isdecimal() and int(text) <= _LARGEST_PORT:
        return f"must be an address and a port: write 127.0.0.1:{text}, or 0.0.0.0:{text} for all addresses"
    return f"must be an address and a port, such as '{LISTEN}' or '[::1]:8400', not {text[:100]!r}"


def _six(text: str) -> IPv6Address:
    try:
        return IPv6Address(text)
    except ValueError:
        raise ValueError(f"must have an IPv6 address between its brackets, not {text[:100]!r}") from None


def _host(text: str) -> str:
    if not text:
        raise ValueError(
            "must name an address in front of the port: '127.0.0.1', or '0.0.0.0' for all of them"
        )
    # What ends in a number is an address or nothing: a resolver could read `127.1` in ways of its own.
    if text.rpartition(".")[2].isdecimal():
        try:
            return str(IPv4Address(text))
        except ValueError:
            raise ValueError(f"must have an address such as 127.0.0.1, not {text[:100]!r}") from None
    if not _NAME.fullmatch(text):
        raise ValueError(f"must have an address or a host's name in front of the port, not {text[:100]!r}")
    return text
