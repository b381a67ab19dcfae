"""What all areas of the OpenAPI document are made of: schemas, parameters, answers."""

from collections.abc import Mapping
from typing import Any, Final

from headgate.server.errors import STATUS_BY_CODE

Json = dict[str, Any]
TEXT: Final = {"type": "string"}
SOME_TEXT: Final = {"type": "string", "minLength": 1}
WHOLE: Final = {"type": "integer"}
NUMBER: Final = {"type": "number"}
FLAG: Final = {"type": "boolean"}
MOMENT: Final = {"type": "string", "format": "date-time"}
NAMED: Final = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"}
IN_HEADER: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^[!-~\u00a1-\u00ac\u00ae-\u00ff]([ -~\u00a1-\u00ac\u00ae-\u00ff]*[!-~\u00a1-\u00ac\u00ae-\u00ff])?$",
}
"""Printable, as far as a header can say it; blanks around it do not count."""
_ERRORS: Final = tuple(
    sorted({str(status) for status in STATUS_BY_CODE.values()} - {"500"} | {"408", "417", "431"})
)


def an_object(required: tuple[str, ...] = (), **properties: Any) -> Json:
    return {"type": "object", "required": list(required), "properties": properties}


def closed(required: tuple[str, ...] = (), **properties: Any) -> Json:
    """An object whose unknown fields are refused."""
    return {**an_object(required, **properties), "additionalProperties": False}


def a_list(of: Mapping[str, Any], **bounds: int) -> Json:
    return {"type": "array", "items": dict(of), **bounds}


def or_null(schema: Mapping[str, Any]) -> Json:
    return {"anyOf": [dict(schema), {"type": "null"}]}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def a_page(of: str) -> Json:
    """A list whose next page goes on after `last_id`."""
    return an_object(
        ("object", "data", "has_more", "last_id"),
        object={"const": "list"},
        data=a_list(ref(of)),
        has_more=FLAG,
        last_id=or_null(TEXT),
    )


def as_json(schema: Mapping[str, Any], description: str) -> Json:
    return {"description": description, "content": {"application/json": {"schema": dict(schema)}}}


def failures() -> Json:
    return {status: as_json(ref("Error"), "An error, in OpenAI's shape.") for status in _ERRORS}


def parameter(name: str, schema: Mapping[str, Any], description: str = "", *, where: str = "query") -> Json:
    told = {"description": description} if description else {}
    return {"name": name, "in": where, "required": where == "path", "schema": dict(schema), **told}


def look(summary: str, schema: str, *parameters: Json, also: str | None = None) -> Json:
    """A GET that answers with this schema; `also` under another status."""
    answers = {"200": as_json(ref(schema), "As it is now.")}
    if also is not None:
        answers[also] = as_json(ref(schema), "As it is now.")
    return {"get": {"summary": summary, "parameters": [*parameters], "responses": {**failures(), **answers}}}


def change(
    summary: str,
    answers: Mapping[str, Json],
    *parameters: Json,
    body: str | None = None,
    needs_body: bool = True,
    method: str = "post",
) -> Json:
    """A request that changes something, with this body."""
    told: Json = {
        "summary": summary,
        "parameters": [*parameters],
        "responses": {**failures(), **answers},
    }
    if body is not None:
        told["requestBody"] = {
            "required": needs_body,
            "content": {"application/json": {"schema": ref(body)}},
        }
    return {method: told}


def tell(summary: str, kind: str, schema: Mapping[str, Any], *parameters: Json) -> Json:
    given = {"description": "As it is now.", "content": {kind: {"schema": dict(schema)}}}
    return {
        "get": {"summary": summary, "parameters": [*parameters], "responses": {**failures(), "200": given}}
    }


ERROR: Final = an_object(
    ("error",),
    error=an_object(
        ("message", "type", "param", "code"),
        message=TEXT,
        type=TEXT,
        param=or_null(TEXT),
        code={"type": "string", "enum": sorted({*STATUS_BY_CODE, "too_many_connections"})},
    ),
)
EVENT: Final = an_object(("data",), event=TEXT, data=TEXT)
KEY: Final = parameter(
    "Idempotency-Key",
    IN_HEADER,
    "Same key, same answer, done once.",
    where="header",
)
WAIT: Final = parameter(
    "X-Headgate-Wait",
    {"type": "string", "enum": ["yes", "no"]},
    "With no: refused at once while the upstream takes no calls.",
    where="header",
)
TIMEOUT: Final = parameter(
    "X-Headgate-Timeout",
    {"type": "number", "exclusiveMinimum": 0},
    "The deadline over everything, in seconds.",
    where="header",
)
