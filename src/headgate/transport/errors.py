"""What can go wrong on the wire, each class with its meaning for an attempt.

TransportError
├── ConnectFailed                   no address took the connection, or TLS broke
│   ├── CertificateRefused          the server is not who it should be (misconfigured)
│   └── ProxyRefused                the proxy would not let us through
├── TimedOut
│   ├── ConnectTimedOut
│   ├── FirstByteTimedOut
│   ├── IdleTimedOut
│   └── TotalTimedOut
├── ConnectionCut                   the peer went away before its answer was whole
├── BadResponse                     not HTTP as it should be
│   └── TooLarge
│       └── PageTooLarge            at a URL that a stranger gave (rejected)
├── TransportClosed                 this process is closing
├── HeaderRefused                   a header to be sent holds what no header may hold (misconfigured)
└── UrlRefused                      the URL itself (rejected)
    └── AddressRefused              it points where nobody from outside may look

They are `ProviderFailure`s that bring their class along, so `classify` needs neither a table nor their text.
Messages name hosts, never paths, queries or header values: those may hold secrets.
"""

from typing import ClassVar

from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind


class TransportError(ProviderFailure):
    """The root. `failure` says what it means; the message says what happened and where."""

    kind: ClassVar[FailureKind] = FailureKind.TRANSIENT
    timed_out: ClassVar[bool] = False
    words: ClassVar[str] = "the connection to the provider failed"
    """For the caller, without the address."""
    unsent: ClassVar[bool] = False

    def __init__(self, message: str) -> None:
        failure = Failure(kind=self.kind, message=message, timed_out=self.timed_out)
        super().__init__(failure, own=message, said=self.words)
        self.sent = not self.unsent


class ConnectFailed(TransportError):
    """No address of the host took the connection. Nothing was sent."""

    words = "the provider could not be reached"
    unsent = True


class CertificateRefused(ConnectFailed):
    """The server's certificate is not trusted, or names another host."""

    kind = FailureKind.MISCONFIGURED


class ProxyRefused(ConnectFailed):
    """The proxy answered a CONNECT with something else than 2xx. Below 500 it is a matter of set-up."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        kind = FailureKind.TRANSIENT if status >= 500 else FailureKind.MISCONFIGURED
        self.failure = Failure(kind=kind, message=message, status=status)


class TimedOut(TransportError):
    """One of the deadlines of a call."""

    words = "the provider did not answer in time"
    timed_out = True


class ConnectTimedOut(TimedOut):
    """No connection within `connect_s`. Nothing was sent."""

    unsent = True


class FirstByteTimedOut(TimedOut):
    """No byte of a body within `first_byte_s`."""


class IdleTimedOut(TimedOut):
    """The answer had begun and then nothing came for `idle_s`."""


class TotalTimedOut(TimedOut):
    """The answer was not whole within `total_s`."""


class ConnectionCut(TransportError):
    """The connection ended before the answer was whole. The request may have been carried out."""

    words = "the connection ended before the answer was whole"


class BadResponse(TransportError):
    """What came is no HTTP answer that can be trusted."""

    words = "the provider did not send a valid HTTP answer"


class TooLarge(BadResponse):
    """More bytes than the caller was ready to take."""


class PageTooLarge(TooLarge):
    """What is at a stranger's URL is too large, and will be the next time."""

    kind = FailureKind.REJECTED


class TransportClosed(TransportError):
    """`aclose` was called."""

    unsent = True


class HeaderRefused(TransportError):
    """A header that would break the request: a key with a line break at its end is the usual case."""

    kind = FailureKind.MISCONFIGURED


class UrlRefused(TransportError):
    """A URL that cannot be asked for: scheme, host, port or spelling."""

    kind = FailureKind.REJECTED


class AddressRefused(UrlRefused):
    """A URL that leads to an address nobody from outside may reach through us. Where it leads is for the log only."""

    def __init__(self, message: str, *, detail: str) -> None:
        super().__init__(message)
        self.own = detail
