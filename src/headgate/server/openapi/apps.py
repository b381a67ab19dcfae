"""Mounted applications, in the OpenAPI document: made of the types that their routes are read and answered with."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from headgate.mounting import AppRoute
from headgate.server.openapi.shapes import EVENT, KEY, NAMED, Json, as_json, failures, parameter

_REFS = "#/components/schemas/{name}"


def tell(mounted: Sequence[AppRoute]) -> tuple[Json, Json]:
    """The paths, and the schemas that they refer to."""
    paths: defaultdict[str, Json] = defaultdict(dict)
    schemas: Json = {}
    for route in mounted:
        paths[_without_kinds(route.path)][route.method.lower()] = _operation(route, schemas)
    return dict(paths), schemas


def _operation(route: AppRoute, schemas: Json) -> Json:
    answers = {
        str(status): as_json(_schema(kind, schemas), "Done.") for status, kind in route.answers.items()
    }
    if route.streams:
        answers.setdefault("200", {"description": "Done.", "content": {}})
        answers["200"]["content"]["text/event-stream"] = {"schema": EVENT}
    told: Json = {
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *_query_parameters(route, schemas)],
        "responses": {**failures(), **answers},
    }
    if route.keyed:
        told["parameters"].append(KEY)
    if route.body is not None:
        content = {"application/json": {"schema": _schema(route.body, schemas)}}
        told["requestBody"] = {"required": True, "content": content}
    return told


def _path_parameters(route: AppRoute) -> list[Json]:
    names = re.findall(r"{([^}]+)}", _without_kinds(route.path))
    return [parameter(name, NAMED, where="path") for name in names]


def _query_parameters(route: AppRoute, schemas: Json) -> list[Json]:
    return [
        {**parameter(field.encode_name, _schema(field.type, schemas)), "required": field.required}
        for field in msgspec.structs.fields(route.query)
    ]


def _schema(kind: Any, schemas: Json) -> Json:
    [schema], found = msgspec.json.schema_components([kind], ref_template=_REFS)
    schemas.update(found)
    return schema


def _without_kinds(path: str) -> str:
    """`{name:path}` is Starlette's way to say it."""
    return re.sub(r":\w+}", "}", path)
