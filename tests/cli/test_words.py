"""Words for people: nothing in them acts on a terminal, and ages are short."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.options import read_future, read_moment, read_past
from headgate.cli.submit import with_patience
from headgate.cli.words import age, escaped_json, one_line, printable, readable_json, when

ANY_TEXT = st.text()


@given(ANY_TEXT)
def test_printable_text_holds_nothing_but_printable_characters_and_line_ends(text: str) -> None:
    assert all(char.isprintable() or char == "\n" for char in printable(text))
    assert one_line(text).isprintable()


@given(ANY_TEXT)
def test_escaped_json_means_the_same(text: str) -> None:
    escaped = escaped_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(escaped) == {text: [text]}
    assert escaped.isprintable()
    assert json.loads(readable_json({text: text})) == {text: text}


def test_what_is_written_out_can_be_recognised() -> None:
    assert printable("a\x1b[2J\u202eb\u00a0c\td\ne") == "a\\x1b[2J\\u202eb c d\ne"
    assert one_line("  a \n\t b ") == "a b"
    assert escaped_json('"\U000e0001"') == '"\\udb40\\udc01"'


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "0s"),
        (0.4, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (5400, "90m"),
        (7200, "2h"),
        (129_600, "36h"),
        (1e6, "11d"),
    ],
)
def test_ages_are_told_in_the_unit_that_says_most(seconds: float, words: str) -> None:
    assert age(seconds) == words


def test_a_moment_is_told_with_its_distance() -> None:
    now = datetime.now(UTC)
    assert when(now - timedelta(hours=3), now).endswith("(3h ago)")
    assert when(now + timedelta(seconds=5), now).endswith("(in 5s)")


def test_a_past_moment_is_a_date_or_an_age() -> None:
    now = datetime.now(UTC)
    assert read_past("2026-01-31T13:00:00+01:00").at(now) == read_moment("2026-01-31T12:00:00Z")
    assert read_past("2h").at(now) == now - timedelta(hours=2)
    assert read_past("99999d").at(now) < now
    assert read_future("12h").at(now) == now + timedelta(hours=12)


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["echo", "--wait"], ["echo", "--wait=inf"]),
        (["echo", "--wait", "30"], ["echo", "--wait", "30"]),
        (["echo", "--wait", "--json"], ["echo", "--wait=inf", "--json"]),
        (["echo", "--wait", '{"a": 1}'], ["echo", "--wait=inf", '{"a": 1}']),
        (["echo", "--wait=5", "1"], ["echo", "--wait=5", "1"]),
        (["echo", "--", "--wait"], ["echo", "--", "--wait"]),
    ],
)
def test_wait_may_stand_alone(words: list[str], read: list[str]) -> None:
    assert with_patience(words) == read
