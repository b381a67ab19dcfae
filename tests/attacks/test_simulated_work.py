"""The simulated provider computes its answers in the event loop: how much of that a request can ask for is bounded."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from attacks.metered import MB, MOST_CALLBACK_S, Metered, metered
from conftest import Figure

CHAT: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"
MODEL: Final = "simulated/instant"
MOST_GROWTH: Final = 64 * MB
TRIES: Final = 3
LONG: Final = "x" * MB


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered]:
    with metered(tmp_path_factory.mktemp("metered"), {}) as running:
        running.ask(
            "POST", CHAT, b'{"model": "simulated/instant", "messages": [{"role": "user", "content": "x"}]}'
        )
        yield running


def many(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "minItems": 900, "items": items, **more}


def each(part: dict[str, Any], count: int = 900) -> dict[str, Any]:
    """An object whose parts are alike, and not the same."""
    properties = {f"p{at}": {**part, "title": str(at)} for at in range(count)}
    return {"type": "object", "properties": properties}


def chain(length: int) -> dict[str, Any]:
    links = {f"d{at}": {"$ref": "#" + "/" * 900 + f"$defs/d{at + 1}"} for at in range(length)}
    return {**each({"$ref": "#" + "/" * 900 + "$defs/d0"}), "$defs": links}


def pattern(text: str, count: int = 900) -> dict[str, Any]:
    parts = {f"p{at}": {"type": "string", "pattern": f"{text}{at}"} for at in range(count)}
    return {"type": "object", "properties": parts}


SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "a long reference": many({"$ref": "#/" + "a/" * 20_000}),
    "a long chain of references": chain(20),
    "a long description": many({"type": "integer", "description": json.dumps({"x": [1] * 20_000})}),
    "many descriptions": each({"type": "integer", "description": json.dumps({"x": [1] * 2000})}),
    "a long constant": many({"const": LONG}),
    "long choices": many({"enum": [LONG, LONG]}),
    "a long name": many({"type": "object", "properties": {LONG: {"type": "string"}}}),
    "many alternatives": many({"anyOf": [None] * 100_000}),
    "many types": many({"type": ["null"] * 100_000}),
    "many keywords": many({"type": "integer", **{f"x{at}": 0 for at in range(100_000)}}),
    "many parts": each({"type": "string"}, 30_000),
    "patterns": pattern("[a-z][0-9]|" * 17),
    "patterns that look back": pattern(".*.*.*.*x"),
    "patterns of large classes": pattern(r"[\u0100-\uffff]" * 12),
    "lists of lists of lists": many(many(many({"type": "string", "minLength": 1e14}))),
}


def _measure(gateway: Metered, path: str, body: dict[str, Any]) -> tuple[int, float, int]:
    """Status, longest callback, and growth of memory beyond the body: the least of some tries."""
    sent = json.dumps(body).encode()
    least_s, growth, status = 9.0, 0, 0
    for _ in range(TRIES):
        gateway.longest_s()
        before = gateway.forget_memory()
        status = gateway.ask("POST", path, sent).status
        growth = gateway.most_memory() - before - len(sent)
        least_s = min(least_s, gateway.longest_s())
        if least_s <= MOST_CALLBACK_S and growth <= MOST_GROWTH:
            break
    return status, least_s, growth


def test_a_schema_is_read_no_further_than_an_answer_may_be_long(gateway: Metered, figure: Figure) -> None:
    found = {}
    for name, schema in SCHEMAS.items():
        shape = {"type": "json_schema", "json_schema": {"schema": schema}}
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "x"}],
            "response_format": shape,
        }
        found[name] = _measure(gateway, CHAT, body)
    figure("simulated shapes: longest callback", f"{max(s for _, s, _ in found.values()) * 1000:.0f} ms")
    assert {name: status for name, (status, _, _) in found.items() if status != 200} == {}
    assert {name: s for name, (_, s, _) in found.items() if s > MOST_CALLBACK_S} == {}
    assert {name: growth for name, (_, _, growth) in found.items() if growth > MOST_GROWTH} == {}


@pytest.mark.parametrize(
    ("texts", "dimensions", "allowed"),
    [
        (2048, 4096, False),
        (2048, 256, False),
        (49, 4096, False),
        (48, 4096, True),
        (2048, 97, True),
        (2048, 16, True),
    ],
)
def test_vectors_are_counted_before_they_are_computed(
    gateway: Metered, texts: int, dimensions: int, allowed: bool
) -> None:
    body = {"model": MODEL, "input": ["a"] * texts, "dimensions": dimensions}
    status, longest_s, growth = _measure(gateway, EMBEDDINGS, body)
    assert status == (200 if allowed else 400)
    assert longest_s <= MOST_CALLBACK_S
    assert growth <= MOST_GROWTH
    if not allowed:
        answer = gateway.ask("POST", EMBEDDINGS, json.dumps(body).encode())
        message = json.loads(answer.body)["error"]["message"]
        assert "the most is 200,000. Send fewer texts, or ask for fewer dimensions" in message
