"""The simulated provider answers in the shape that is asked for, as a real one with structured outputs does."""

import json
import time
from typing import Any, Final

import jsonschema_rs
import pytest

from headgate.apps.bookmarks import describing
from headgate.providers.simulated.shaped import LONGEST_TEXT_CHARS, MOST_VALUES, shaped_answer

TEXT: Final = {"type": "string"}
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "a bookmark": describing.SCHEMA,
    "bounds": {
        "type": "object",
        "required": ["label", "long", "share", "count", "many", "none"],
        "properties": {
            "label": {**TEXT, "minLength": 3, "maxLength": 5},
            "long": {**TEXT, "minLength": 500},
            "share": {"type": "number", "minimum": 0.25, "exclusiveMaximum": 0.5},
            "count": {"type": "integer", "exclusiveMinimum": 7, "maximum": 9},
            "many": {"type": "array", "minItems": 4, "items": {"type": "boolean"}},
            "none": {"type": "array", "maxItems": 0, "items": TEXT},
        },
    },
    "references": {
        "$ref": "#/$defs/Verdict",
        "$defs": {
            "Verdict": {"type": "object", "properties": {"label": {"$ref": "#/$defs/Label"}}},
            "Label": {"enum": ["THINK", "FYI"]},
        },
    },
    "one of several": {"anyOf": [{"type": "null"}, {"type": ["integer", "null"]}]},
    "a constant": {"const": {"a": [1]}},
    "patterns": {"type": "object", "properties": {"day": {**TEXT, "pattern": r"^\d{4}-\d\d-\d\d$"}}},
}


def asking(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("question", ["what?", "", "\x00\n\ud800" * 50, "漢" * 300])
def test_the_answer_fits_the_schema(name: str, question: str) -> None:
    schema = SCHEMAS[name]
    for seed in range(5):
        told = shaped_answer(asking(schema), question, seed)
        assert told is not None
        jsonschema_rs.validate(schema, json.loads(told))


def test_bounds_in_a_description_are_read_as_a_model_would() -> None:
    """Real providers refuse them in the schema itself."""
    for question in ("a page", "x" * 500):
        told = shaped_answer(describing.response_format(), question, 0)
        assert 120 <= len(describing.read(told).summary) <= 200


def test_the_same_question_and_seed_give_the_same_answer_and_others_another() -> None:
    asked = asking({"type": "object", "properties": {"summary": TEXT, "share": {"type": "number"}}})
    told = {shaped_answer(asked, question, seed) for question in ("a", "b") for seed in (0, 1)}
    assert len(told) == 4
    assert shaped_answer(asked, "a", 0) == shaped_answer(asked, "a", 0)


@pytest.mark.parametrize("asked", [None, 7, {"type": "text"}, {"type": "json_schema"}, asking(5)])
def test_who_asks_for_no_shape_gets_text(asked: Any) -> None:
    assert shaped_answer(asked, "q", 0) is None


def test_any_object_will_do_where_any_is_asked_for() -> None:
    told = shaped_answer({"type": "json_object"}, "q", 0)
    assert told is not None
    assert isinstance(json.loads(told), dict)


def _laughs() -> dict[str, Any]:
    """Two of two of two …: a schema of a page that describes 2⁴⁰ values."""
    defs: dict[str, Any] = {f"d{n}": _pair(f"#/$defs/d{n + 1}") for n in range(40)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, "d40": TEXT}}


def _pair(reference: str) -> dict[str, Any]:
    return {"type": "object", "properties": {side: {"$ref": reference} for side in ("a", "b")}}


@pytest.mark.parametrize(
    "schema",
    [
        _laughs(),
        {"$ref": "#"},
        {"type": "object", "properties": {"again": {"$ref": "#"}, "more": {"$ref": "#"}}},
        {"type": "array", "minItems": 10**9, "items": TEXT},
        {**TEXT, "minLength": 10**12},
        {**TEXT, "pattern": "(((((.*)*)*)*)*)*x"},
        {**TEXT, "pattern": ".*.*.*.*.*.*.*.*.*.*.*.*x"},
        {"type": "array", "minItems": 10**9, "items": {**TEXT, "minLength": 10**9}},
        {**TEXT, "pattern": "(", "maxLength": -5, "minLength": "three"},
        {"type": "integer", "minimum": 5, "maximum": 1},
        {"type": "object", "properties": 7},
        {"anyOf": [], "enum": [], "$ref": "elsewhere"},
    ],
)
def test_a_hostile_schema_costs_next_to_nothing(schema: dict[str, Any]) -> None:
    """Anybody with a key may ask the simulated model for anything."""
    started = time.process_time()
    told = shaped_answer(asking(schema), "q", 0)
    assert told is not None
    assert len(told) < MOST_VALUES * 100 + 2 * LONGEST_TEXT_CHARS
    assert time.process_time() - started < 0.5
