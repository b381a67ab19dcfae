"""Authenticated encryption of small secrets with one key: HMAC-SHA256 in counter mode, then HMAC-SHA256 over the whole.

Encrypt-then-MAC with two keys derived from the one. A sealed text belongs to its place: elsewhere it does not open.
"""

import hashlib
import hmac
from itertools import count
from typing import Final

NONCE_BYTES: Final = 16
_VERSION: Final = b"\x01"
_TAG_BYTES: Final = hashlib.sha256().digest_size


class WrongKey(ValueError):
    """Sealed with another key, for another place, or changed since."""


def key_of(text: str) -> bytes:
    """The key that a setting or a file names."""
    return hashlib.sha256(b"headgate secret key\0" + text.encode()).digest()


def check_value(key: bytes) -> bytes:
    """Tells whether two nodes have the same key, and nothing else of it."""
    return hmac.digest(key, b"check", hashlib.sha256)


def seal(key: bytes, secret: bytes, *, place: str, nonce: bytes) -> bytes:
    """`nonce` is random and used once."""
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
    head = _VERSION + nonce
    body = head + _masked(key, nonce, secret)
    return body + _tag(key, body, place)


def unseal(key: bytes, sealed: bytes, *, place: str) -> bytes:
    """Raises `WrongKey`."""
    body, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
    nonce, masked = body[1 : 1 + NONCE_BYTES], body[1 + NONCE_BYTES :]
    if not hmac.compare_digest(tag, _tag(key, body, place)) or body[:1] != _VERSION:
        raise WrongKey("sealed with another key, for another place, or changed since")
    return _masked(key, nonce, masked)


def _masked(key: bytes, nonce: bytes, text: bytes) -> bytes:
    own = hmac.digest(key, b"encrypt", hashlib.sha256)
    stream = b""
    for number in count():
        if len(stream) >= len(text):
            break
        stream += hmac.digest(own, nonce + number.to_bytes(8), hashlib.sha256)
    return bytes(one ^ other for one, other in zip(text, stream, strict=False))


def _tag(key: bytes, body: bytes, place: str) -> bytes:
    own = hmac.digest(key, b"authenticate", hashlib.sha256)
    named = place.encode()
    return hmac.digest(own, len(named).to_bytes(8) + named + body, hashlib.sha256)
