"""Mounted applications, in the OpenAPI document: made of the types that their routes are read and answered with."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from headgate.mounting import AppKeyed, AppRoute
from headgate.server.openapi.shapes import (
    EVENT,
    KEY,
    NAMED,
    TEXT,
    TIMEOUT,
    Json,
    as_json,
    failures,
    parameter,
)

_PREFIX: Final = "apps."
"""An application may call a type as the gateway calls one of its own."""
_KEYS: Final[Mapping[AppKeyed, list[Json]]] = {
    AppKeyed.OPTIONAL: [KEY],
    AppKeyed.REQUIRED: [{**KEY, "required": True}],
}
_Schemas = Mapping[Any, Json]


def tell(mounted: Sequence[AppRoute]) -> tuple[Json, Json]:
    """The paths, and the schemas that they refer to."""
    kinds = list(dict.fromkeys(kind for route in mounted for kind in _kinds(route)))
    # All at once: types of two applications that are called alike get names that tell them apart.
    found, components = msgspec.json.schema_components(
        kinds, ref_template=f"#/components/schemas/{_PREFIX}{{name}}"
    )
    schemas = dict(zip(kinds, found, strict=True))
    paths: defaultdict[str, Json] = defaultdict(dict)
    for route in mounted:
        paths[_without_kinds(route.path)][route.method.lower()] = _operation(route, schemas)
    return dict(paths), {f"{_PREFIX}{name}": told for name, told in components.items()}


def _kinds(route: AppRoute) -> Iterator[Any]:
    yield from route.answers.values()
    yield from (field.type for field in msgspec.structs.fields(route.query))
    if route.body is not None:
        yield route.body


def _operation(route: AppRoute, schemas: _Schemas) -> Json:
    answers = {str(status): as_json(schemas[kind], "Done.") for status, kind in route.answers.items()}
    for media_type, schema in _other_kinds(route):
        done = answers.setdefault("200", {"description": "Done.", "content": {}})
        done["content"][media_type] = {"schema": schema}
    told: Json = {
        "summary": route.summary,
        "parameters": _parameters(route, schemas),
        "responses": {**failures(), **answers},
    }
    if route.body is not None:
        content = {"application/json": {"schema": schemas[route.body]}}
        told["requestBody"] = {"required": True, "content": content}
    return told


def _other_kinds(route: AppRoute) -> Iterator[tuple[str, Json]]:
    """What its 200 may be besides JSON."""
    if route.streams:
        yield "text/event-stream", EVENT
    if route.media_type != "application/json":
        yield route.media_type.partition(";")[0], TEXT


def _parameters(route: AppRoute, schemas: _Schemas) -> list[Json]:
    named = re.findall(r"{([^}]+)}", _without_kinds(route.path))
    asked = [
        {**parameter(field.encode_name, schemas[field.type]), "required": field.required}
        for field in msgspec.structs.fields(route.query)
    ]
    return [
        *(parameter(name, NAMED, where="path") for name in named),
        *asked,
        *_KEYS.get(route.keyed, []),
        *([TIMEOUT] if route.waits else []),
    ]


def _without_kinds(path: str) -> str:
    """`{name:path}` is Starlette's way to say it."""
    return re.sub(r":\w+}", "}", path)
