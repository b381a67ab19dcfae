"""Fields are read where a provider must look inside, and no body keeps all other calls waiting."""

import json
from typing import Any

import msgspec
import pytest

from headgate.core.errors import InvalidRequest
from headgate.formats.reading import read_fields, read_value

LARGE = 2_000_000


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def test_json_is_read_and_values_are_left_alone() -> None:
    class Own:
        """Of a library's caller."""

    own = Own()
    fields = read_fields({"a": msgspec.Raw(b"[1, 2.5]"), "b": [msgspec.Raw(b"1")], "c": own, "d": None})

    assert fields == {"a": [1, 2.5], "b": [msgspec.Raw(b"1")], "c": own, "d": None}
    assert read_value(own) is own


@pytest.mark.parametrize("value", [b"{", b"nul", b"", b'"\xff"', b"[" * 100_000 + b"]" * 100_000])
def test_what_is_not_json_is_rejected(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        read_fields({"a": raw(1), "b": msgspec.Raw(value)})


@pytest.mark.parametrize(
    "value",
    [
        "x" * LARGE,
        'with "quotes" ' * 100_000,
        ["word "] * 100_000,
        [{"role": "user", "content": "x" * 2000}] * 1000,
        [0.25] * 300_000,
    ],
    ids=["a text", "quotes", "texts", "messages", "numbers"],
)
def test_a_large_body_of_what_callers_send_is_read(value: Any) -> None:
    assert read_fields({"a": raw(value)}) == {"a": value}


@pytest.mark.parametrize(
    "value",
    [
        b"[" + b"[]," * 1_000_000 + b"[]]",
        b"[" + b"{}," * 1_000_000 + b"{}]",
        b"[" + b'"",' * 1_000_000 + b'""]',
        b"[" + b"1," * 3_000_000 + b"1]",
        b'["' + b"x" * LARGE + b'",' + b"[]," * 500_000 + b"[]]",
    ],
    ids=["lists", "objects", "texts", "numbers", "lists behind a text"],
)
def test_millions_of_things_are_rejected_unread(value: bytes) -> None:
    """To read them takes seconds."""
    with pytest.raises(InvalidRequest, match="send less"):
        read_fields({"a": msgspec.Raw(value)})
