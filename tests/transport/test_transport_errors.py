"""What each error of the wire means for an attempt: by its class, never by its text."""

from datetime import UTC, datetime

import pytest

from headgate.core.failures import Failure, FailureKind
from headgate.core.foreign import classify
from headgate.transport import errors
from headgate.transport.errors import TransportError

NOW = datetime(2026, 3, 1, tzinfo=UTC)
MEANINGS = {
    "TransportError": (FailureKind.TRANSIENT, False),
    "ConnectFailed": (FailureKind.TRANSIENT, False),
    "CertificateRefused": (FailureKind.MISCONFIGURED, False),
    "TimedOut": (FailureKind.TRANSIENT, True),
    "ConnectTimedOut": (FailureKind.TRANSIENT, True),
    "FirstByteTimedOut": (FailureKind.TRANSIENT, True),
    "IdleTimedOut": (FailureKind.TRANSIENT, True),
    "TotalTimedOut": (FailureKind.TRANSIENT, True),
    "ConnectionCut": (FailureKind.TRANSIENT, False),
    "BadResponse": (FailureKind.TRANSIENT, False),
    "TooLarge": (FailureKind.TRANSIENT, False),
    "PageTooLarge": (FailureKind.REJECTED, False),
    "TransportClosed": (FailureKind.TRANSIENT, False),
    "HeaderRefused": (FailureKind.MISCONFIGURED, False),
    "UrlRefused": (FailureKind.REJECTED, False),
    "AddressRefused": (FailureKind.REJECTED, False),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_each_error_brings_its_class_along(name: str) -> None:
    kind, timed_out = MEANINGS[name]
    more = {"detail": "where it leads"} if name == "AddressRefused" else {}
    error = getattr(errors, name)("what happened", **more)
    assert classify(error, now=NOW) == Failure(kind=kind, message="what happened", timed_out=timed_out)
    assert str(error) == "what happened"


def test_where_a_refused_address_leads_is_for_the_log_only() -> None:
    """The message may be kept in a tenant's job."""
    error = errors.AddressRefused("it is not allowed", detail="it leads to 10.0.0.7: a private network")
    assert error.own == "it leads to 10.0.0.7: a private network"
    assert "10.0.0.7" not in f"{error} {error.public} {error.failure}"


@pytest.mark.parametrize(("status", "kind"), [(407, FailureKind.MISCONFIGURED), (503, FailureKind.TRANSIENT)])
def test_a_proxys_no_is_the_operators_business_unless_it_is_a_5xx(status: int, kind: FailureKind) -> None:
    failure = classify(errors.ProxyRefused("no", status=status), now=NOW)
    assert (failure.kind, failure.status) == (kind, status)


def test_no_error_is_left_without_a_meaning() -> None:
    tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, TransportError)
    }
    assert tree == set(MEANINGS) | {"ProxyRefused"}
