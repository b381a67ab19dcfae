"""What an access key looks like: `hg_`, 33 random characters, 6 of checksum. And what is kept of one: a keyed digest.

The checksum tells a mistyped key from an unknown one without looking anything up. Chance and the secret are handed in.
"""

import hashlib
import hmac
import re
import string
import zlib
from typing import Final

PREFIX: Final = "hg_"
RANDOM_BYTES: Final = 24
"""192 bits. The last four characters are shown in lists and give away 24 of them; 160 must be left."""
_ALPHABET: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SECRET_CHARS: Final = 33
_CHECKSUM_CHARS: Final = 6
_SHAPE: Final = re.compile(rb"hg_([0-9A-Za-z]{33})([0-9A-Za-z]{6})")
_DOMAIN: Final = b"access key\0"
"""The store's secret also keys the fingerprints of request bodies: none of those may be a key's digest."""


def new_key_text(random: bytes) -> str:
    """A key made of this much chance."""
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"a key needs {RANDOM_BYTES} random bytes, not {len(random)}")
    secret = _in_letters(int.from_bytes(random), _SECRET_CHARS)
    return f"{PREFIX}{secret}{_checksum(secret.encode())}"


def is_key_text(presented: bytes) -> bool:
    """Whether this can be one of our keys. A wrong, missing or swapped character is always noticed."""
    found = _SHAPE.fullmatch(presented)
    return found is not None and _checksum(found[1]).encode() == found[2]


def digest_of(presented: bytes, secret: bytes) -> bytes:
    """What the store knows of a key. A slow hash would add nothing: nobody guesses 192 random bits."""
    return hmac.digest(secret, _DOMAIN + presented, hashlib.sha256)


def last_four(text: str) -> str:
    """What people may see of a key."""
    return text[-4:]


def _checksum(secret: bytes) -> str:
    # CRC-32 notices every change within four neighbouring characters, and of the others all but one in four billion.
    return _in_letters(zlib.crc32(secret), _CHECKSUM_CHARS)


def _in_letters(number: int, length: int) -> str:
    letters = []
    for _ in range(length):
        number, digit = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[digit])
    return "".join(reversed(letters))
