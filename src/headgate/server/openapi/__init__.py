"""The OpenAPI document, served at `/openapi.json`: what the routes take and give, for people and for checks.

Every area has a module with its `SCHEMAS` and its `paths()`; what is mounted tells of itself.
"""

from collections.abc import Sequence
from typing import Any, Final

from headgate.mounting import AppRoute
from headgate.server.openapi import apps, batches, inference, jobs, operating, status, webhooks
from headgate.server.openapi.shapes import ERROR

_AREAS: Final = (inference, jobs, batches, webhooks, operating, status)


def document(version: str, mounted: Sequence[AppRoute] = ()) -> dict[str, Any]:
    """Everything in force."""
    app_paths, app_schemas = apps.tell(mounted)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headgate",
            "version": version,
            "description": "Dependable LLM calls. Unknown fields of a body pass to the provider untouched.",
        },
        "paths": {path: told for area in _AREAS for path, told in area.paths().items()} | app_paths,
        "components": {
            "schemas": {
                "Error": ERROR,
                **{name: told for area in _AREAS for name, told in area.SCHEMAS.items()},
                **app_schemas,
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }
