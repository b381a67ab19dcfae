"""Prompts and their schemas are files: read, versioned, and held to."""

import json
from pathlib import Path

import pytest

from headgate.apps import articles
from headgate.apps.articles.chunking import CHUNK_CHARS, OVERLAP_CHARS
from headgate.apps.articles.contracts import PART, SUMMARY, WHOLE, Contract

TEXTS = Path(articles.__file__).parent / "texts"


@pytest.mark.parametrize("contract", [SUMMARY, PART, WHOLE])
def test_a_prompt_has_a_version_and_one_place_for_the_text(contract: Contract) -> None:
    assert contract.name.rpartition("-v")[2].isdigit()
    assert contract.wording.count("{text}") == 1
    [message] = contract.messages("Braces {like} {text} these stay.")
    assert message["content"].endswith("Braces {like} {text} these stay.\n")


def test_every_prompt_is_used_and_every_schema_is_valid() -> None:
    assert {path.stem for path in TEXTS.glob("*.md")} == {one.name for one in (SUMMARY, PART, WHOLE)}
    for path in TEXTS.glob("*.schema.json"):
        schema = json.loads(path.read_text())
        assert (schema["type"], f"{schema['$id']}.schema.json") == ("string", path.name)


def test_notes_are_always_shorter_than_what_they_are_of() -> None:
    """Else notes of notes would never end."""
    assert PART.most_chars < CHUNK_CHARS - OVERLAP_CHARS


@pytest.mark.parametrize(
    ("answer", "flaw"),
    [
        ("A fine summary.", None),
        ("So it goes. " * 3, "the answer repeats itself"),
        ("x" * 4001, "the answer has 4,001 characters; 1 to 4,000 are allowed"),
    ],
)
def test_an_answer_is_held_to_its_contract(answer: str, flaw: str | None) -> None:
    assert SUMMARY.flaw(answer) == flaw
