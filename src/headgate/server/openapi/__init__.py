"""The OpenAPI document, served at `/openapi.json`: what the routes take and give, for people and for checks.

Every area has a module with its `SCHEMAS` and its `paths()`.
"""

from typing import Any, Final

from headgate.server.openapi import batches, inference, jobs, status
from headgate.server.openapi.shapes import ERROR

_AREAS: Final = (inference, jobs, batches, status)


def document(version: str) -> dict[str, Any]:
    """Everything in force."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headgate",
            "version": version,
            "description": "Dependable LLM calls. Unknown fields of a body pass to the provider untouched.",
        },
        "paths": {path: told for area in _AREAS for path, told in area.paths().items()},
        "components": {
            "schemas": {
                "Error": ERROR,
                **{name: told for area in _AREAS for name, told in area.SCHEMAS.items()},
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }
