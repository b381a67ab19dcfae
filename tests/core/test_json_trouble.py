"""What people are told of a text that is no JSON, and of one that is too much to be read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import InvalidRequest
from headgate.core.json_trouble import MAX_DIGITS, MAX_NESTING, MAX_SIGNS, check_json, why_no_json

TRICKY = st.text(alphabet='\\"[]{},:a', max_size=12)
VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TRICKY),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TRICKY, inner, max_size=4),
    max_leaves=40,
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (rb'{"a": "\ud800"}', r"\ud800 is half a character"),
        (rb'{"a": "\uD83D and more"}', r"\uD83D is half a character"),
        (rb'{"a": "\\\ud83d\u0041"}', r"\ud83d is half a character"),
        (rb'{"a": "\ud83d\ude00', "as the parser says"),
        (rb'{"a": "\\ud83d', "as the parser says"),
        (b"\\" * 100_000, "as the parser says"),
        (rb"\ud83d" + b" " * 1000, "as the parser says"),
    ],
)
def test_half_a_character_is_called_what_it_is(text: bytes, told: str) -> None:
    """The parser says that the text was cut off, and people would look at its end."""
    assert why_no_json(text, ValueError("as the parser says")).startswith(told)


def test_half_a_character_is_looked_for_where_the_parser_stopped() -> None:
    text = b'["' + b"a" * 1000 + rb'\ud83d and more", "' + b"a" * 1000 + b'"]'
    error = ValueError("JSON is malformed: unexpected end of escaped utf-16 surrogate pair (byte 1009)")
    assert why_no_json(text, error).startswith(r"\ud83d is half a character")


def _signs(value: Any) -> int:
    """Counted on the value itself: commas, colons and opening brackets."""
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(_signs, value))
    if isinstance(value, dict):
        return 1 + max(0, 2 * len(value) - 1) + sum(map(_signs, value.values()))
    return 0


@given(VALUES, st.booleans())
def test_signs_are_counted_outside_of_texts_only(value: Any, indented: bool) -> None:
    text = json.dumps(value, indent=2 if indented else None, ensure_ascii=False).encode()
    signs = _signs(value)
    padded = text + b" " * len(
        text
    )  # Longer than the bound: a short text has few signs, and is not looked at.
    check_json(padded, max_signs=signs)
    if signs:
        with pytest.raises(InvalidRequest, match="values and names"):
            check_json(padded, max_signs=signs - 1)


@given(TRICKY)
def test_a_text_full_of_brackets_is_not_deep(word: str) -> None:
    check_json(json.dumps([word * 100, "[" * 1000]).encode())


@pytest.mark.parametrize("levels", [MAX_NESTING, MAX_NESTING + 1])
@pytest.mark.parametrize("start", range(999_985, 1_000_005))
def test_nothing_is_miscounted_where_two_slices_meet(levels: int, start: int) -> None:
    """Escapes and brackets of a text around byte 1,000,000, and deep lists behind it."""
    text = json.dumps(
        ["a" * start + '\\"[\\\\"{\\', json.loads("[" * (levels - 1) + "]" * (levels - 1))]
    ).encode()
    if levels <= MAX_NESTING:
        check_json(text)
    else:
        with pytest.raises(InvalidRequest, match="nested too deeply: it has more than 200 levels"):
            check_json(text)


def test_levels_are_counted_across_slices() -> None:
    half = MAX_NESTING // 2
    gap = b" " * 1_500_000
    for more, told in ((0, None), (1, "nested too deeply")):
        text = b"[" * (half + more) + gap + b"[" * half + gap + b"]" * (2 * half + more)
        if told is None:
            check_json(text)
        else:
            with pytest.raises(InvalidRequest, match=told):
                check_json(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"[" + b"1," * MAX_SIGNS + b"1]", "the body has more than 350,000 values and names"),
        (b'"' * 1_000_000, "values and names"),
        (b"[" + b"1" * (MAX_DIGITS + 1) + b" " * MAX_SIGNS + b"]", "a number of more than 100 digits"),
    ],
)
def test_what_is_too_much_is_told(text: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        check_json(text)


def test_three_hundred_thousand_numbers_and_a_large_image_are_not_too_much() -> None:
    check_json(json.dumps({"input": list(range(300_000))}).encode())
    check_json(b'{"url": "data:image/png;base64,%b"}' % (b"iVBORw0K" * 2_500_000))
    check_json(b'{"content": "%b"}' % (b"1,2,[3],{4}:5\\n" * 1_000_000))
