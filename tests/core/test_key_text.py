"""The look of a key: made of chance, told from mistakes without a look-up, kept as a digest only."""

import math
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.key_text import RANDOM_BYTES, digest_of, is_key_text, last_four, new_key_text

LETTERS = string.digits + string.ascii_letters
chances = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)
secrets = st.binary(min_size=32, max_size=32)


@given(chances)
def test_every_key_is_recognised(chance: bytes) -> None:
    text = new_key_text(chance)

    assert re.fullmatch(r"hg_[0-9A-Za-z]{39}", text)
    assert is_key_text(text.encode())
    assert text.endswith(last_four(text))


@given(chances, chances)
def test_other_chance_is_another_key(one: bytes, other: bytes) -> None:
    assert (new_key_text(one) == new_key_text(other)) == (one == other)


def test_nobody_can_guess_one() -> None:
    """Also not who sees the last four characters in a list: 160 bits must be left."""
    assert RANDOM_BYTES * 8 - 4 * math.log2(len(LETTERS)) >= 160
    with pytest.raises(ValueError, match="24 random bytes, not 16"):
        new_key_text(bytes(16))


@given(chances, st.integers(3, 41), st.sampled_from(LETTERS))
def test_a_mistyped_character_is_noticed(chance: bytes, place: int, letter: str) -> None:
    """Always, not only nearly always; a slip of the shift key too."""
    text = new_key_text(chance)
    typed = text[:place] + letter + text[place + 1 :]

    assert is_key_text(typed.encode()) == (typed == text)


@given(chances, st.integers(3, 40))
def test_two_swapped_characters_are_noticed(chance: bytes, place: int) -> None:
    text = new_key_text(chance)
    typed = text[:place] + text[place + 1] + text[place] + text[place + 2 :]

    assert is_key_text(typed.encode()) == (typed == text)


@given(chances, st.integers(0, 41))
def test_a_key_that_was_cut_or_grew_is_noticed(chance: bytes, place: int) -> None:
    text = new_key_text(chance)

    assert not is_key_text(text[:place].encode())
    assert not is_key_text((text[:place] + "x" + text[place:]).encode())


@pytest.mark.parametrize(
    "foreign",
    [b"", b"hg_", b"sk-proj-abc", b"hg_" + b"0" * 39, b"\xff" * 42, b"hg_" + b"\xc3\xa4" * 19 + b"0"],
)
def test_what_others_call_a_key_is_none(foreign: bytes) -> None:
    assert not is_key_text(foreign)


@given(chances, secrets)
def test_a_digest_is_not_the_key_and_shows_nothing_of_it(chance: bytes, secret: bytes) -> None:
    text = new_key_text(chance).encode()
    digest = digest_of(text, secret)

    assert len(digest) == 32
    assert digest != text
    assert text[3:] not in digest
    assert digest == digest_of(text, secret)
    assert digest != digest_of(text, bytes(32) if any(secret) else b"\1" * 32)


@given(chances, st.integers(1, 41))
def test_keys_that_begin_or_end_alike_have_nothing_in_common(chance: bytes, length: int) -> None:
    """A cache that knew only the first characters of a key once let strangers in."""
    text = new_key_text(chance).encode()

    assert digest_of(text[:length], bytes(32)) != digest_of(text, bytes(32))
    assert digest_of(text[length:], bytes(32)) != digest_of(text, bytes(32))
