"""What people are told of a text that is no JSON."""

import pytest

from headgate.core.json_trouble import why_no_json


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (rb'{"a": "\ud800"}', r"\ud800 is half a character"),
        (rb'{"a": "\uD83D and more"}', r"\uD83D is half a character"),
        (rb'{"a": "\\\ud83d\u0041"}', r"\ud83d is half a character"),
        (rb'{"a": "\ud83d\ude00', "as the parser says"),
        (rb'{"a": "\\ud83d', "as the parser says"),
        (b"\\" * 100_000, "as the parser says"),
    ],
)
def test_half_a_character_is_called_what_it_is(text: bytes, told: str) -> None:
    """The parser says that the text was cut off, and people would look at its end."""
    assert why_no_json(text, ValueError("as the parser says")).startswith(told)
