"""One parser for all carriers: what counts as a key, what as none, and what as one too many."""

import pytest

from headgate.core.errors import HeadgateError, InvalidRequest, Unauthorized
from headgate.server.credential import read_credential

Headers = list[tuple[bytes, bytes]]
OTHERS: Headers = [(b"host", b"x"), (b"content-type", b"application/json"), (b"x-api-keys", b"no")]


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", b"Bearer hg_secret"),
        (b"authorization", b"bearer hg_secret"),
        (b"authorization", b"BEARER   hg_secret "),
        (b"x-api-key", b"hg_secret"),
        (b"x-api-key", b" hg_secret "),
    ],
)
def test_both_carriers_bring_the_same_key(header: tuple[bytes, bytes]) -> None:
    assert read_credential([*OTHERS, header]) == b"hg_secret"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer   ")],
        [(b"authorization", b"hg_secret")],
        [(b"authorization", b"Basic hg_secret")],
        [(b"authorization", b"BearerX hg_secret")],
        [(b"x-api-key", b"  ")],
    ],
)
def test_no_key_is_401_and_says_how_to_send_one(headers: Headers) -> None:
    with pytest.raises(Unauthorized, match="Authorization: Bearer") as refusal:
        read_credential([*OTHERS, *headers])
    assert "hg_secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer hg_one"), (b"x-api-key", b"hg_one")],
        [(b"x-api-key", b"hg_one"), (b"authorization", b"Bearer hg_two")],
        [(b"authorization", b"Bearer hg_one"), (b"authorization", b"Bearer hg_one")],
        [(b"x-api-key", b"hg_one"), (b"x-api-key", b"hg_two")],
        [(b"authorization", b""), (b"x-api-key", b"hg_one")],
    ],
)
def test_two_credentials_are_400_even_when_they_are_equal(headers: Headers) -> None:
    """Two parsers would choose differently between them: limits of one, rights of the other."""
    with pytest.raises(InvalidRequest, match="two credentials") as refusal:
        read_credential([*headers, *OTHERS])
    assert isinstance(refusal.value, HeadgateError)
    assert "hg_" not in str(refusal.value)
