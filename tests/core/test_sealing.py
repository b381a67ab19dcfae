"""Sealed secrets: open with the right key in the right place, unchanged, and nowhere else."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.sealing import NONCE_BYTES, WrongKey, check_value, key_of, seal, unseal

KEY = key_of("0123456789abcdef0123456789abcdef")
NONCE = bytes(range(NONCE_BYTES))


def test_the_construction_is_the_documented_one() -> None:
    """Computed here step by step: a later version must read what this one wrote."""
    secret = b"a secret of more than one block of 32 bytes"
    encrypt = hmac.new(KEY, b"encrypt", hashlib.sha256).digest()
    authenticate = hmac.new(KEY, b"authenticate", hashlib.sha256).digest()
    stream = b"".join(
        hmac.new(encrypt, NONCE + bytes(7) + bytes([number]), hashlib.sha256).digest() for number in range(2)
    )
    body = b"\x01" + NONCE + bytes(a ^ b for a, b in zip(secret, stream, strict=False))
    tag = hmac.new(authenticate, bytes(7) + b"\x05" + b"place" + body, hashlib.sha256).digest()

    assert seal(KEY, secret, place="place", nonce=NONCE) == body + tag


def test_fixed_vectors() -> None:
    assert KEY.hex() == hashlib.sha256(b"headgate secret key\x000123456789abcdef0123456789abcdef").hexdigest()
    assert seal(KEY, b"secret", place="p", nonce=NONCE).hex() == VECTOR
    assert unseal(KEY, bytes.fromhex(VECTOR), place="p") == b"secret"


VECTOR = "01000102030405060708090a0b0c0d0e0fa141f61c44ea256f843762ce9ec2a42162e50c274fd96a69e0088639577d0759afa4ca1e08dd"


@given(secret=st.binary(max_size=200), place=st.text(max_size=20), nonce=st.binary(min_size=16, max_size=16))
def test_what_was_sealed_opens(secret: bytes, place: str, nonce: bytes) -> None:
    sealed = seal(KEY, secret, place=place, nonce=nonce)
    assert unseal(KEY, sealed, place=place) == secret


@given(data=st.data())
def test_what_was_changed_does_not_open(data: st.DataObject) -> None:
    sealed = bytearray(seal(KEY, b"a secret", place="p", nonce=NONCE))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WrongKey):
        unseal(KEY, bytes(sealed), place="p")


@pytest.mark.parametrize("sealed", [b"", b"\x01", bytes(31), bytes(49), bytes(100)])
def test_what_was_never_sealed_does_not_open(sealed: bytes) -> None:
    with pytest.raises(WrongKey):
        unseal(KEY, sealed, place="p")


def test_neither_another_key_nor_another_place_opens_it() -> None:
    sealed = seal(KEY, b"a secret", place="p", nonce=NONCE)
    for key, place in ((key_of("another key of a node"), "p"), (KEY, "q"), (KEY, "")):
        with pytest.raises(WrongKey):
            unseal(key, sealed, place=place)


def test_the_check_value_tells_keys_apart_and_is_none_of_their_uses() -> None:
    assert check_value(KEY) == check_value(KEY) != check_value(key_of("another key of a node"))
    assert check_value(KEY) not in seal(KEY, bytes(100), place="p", nonce=NONCE)
    with pytest.raises(ValueError, match="16 bytes"):
        seal(KEY, b"", place="p", nonce=b"short")
