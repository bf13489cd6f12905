"""The OpenAPI document, made of the routes and the models of their bodies."""

from __future__ import annotations

from typing import Any

from axern.api.schema import Body
from ledger.errors import CODES
from ledger.rights import Verb


def _reference(model: type[Body]) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def openapi(version: str, routes: list[tuple[str, str, Verb, str, type[Body] | None]]) -> Any:
    """Return the OpenAPI 3.1 document of *routes*: (method, path, verb, what it does, body).

    Each operation says in `x-axern-verb` which right it takes, and whose the thing must be.
    """
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {"Problem": _problem_schema()}
    for method, path, verb, summary, model in routes:
        problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
        operation: dict[str, Any] = {
            "summary": summary,
            "x-axern-verb": {"name": verb.name, "right": verb.right, "whose": list(verb.whose)},
            "responses": {
                "2XX": {"description": "done"},
                "default": {
                    "description": "refused or failed",
                    "content": {"application/problem+json": problem},
                },
            },
        }
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        if names:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in names
            ]
        if model is not None:
            schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
            operation["requestBody"] = {
                "required": method != "DELETE",
                "content": {"application/json": {"schema": _reference(model)}},
            }
        paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Axern", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_ROWS = {"type": "array", "items": {"type": "object"}}
_REFUSAL = {
    "diagnostic_code": _TEXT,
    "admission_summary": _TEXT,
    "generation": _NUMBER,
    "facts_sequence": _NUMBER,
    "waitable": _FLAG,
    "explained": _FLAG,
    "shortfalls": _ROWS,
    "holders": _ROWS,
    "would_fit_if": _ROWS,
    "reasons": {"type": "array", "items": _TEXT},
    "earliest_fit_at": {"type": ["string", "null"], "format": "date-time"},
}
"""What a decision of admission has besides; see `axern.api.views.refusal_view`."""


def _problem_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["type", "title", "status", "detail", "error"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "request_id": {"type": "string"},
            "error": {
                "type": "object",
                "required": ["code", "message", "retryable"],
                "properties": {
                    "code": {"type": "string", "enum": sorted(CODES)},
                    "message": {"type": "string"},
                    "hint": {"type": ["string", "null"]},
                    "retryable": {"type": "boolean"},
                    "retry_after_s": {"type": ["integer", "null"], "minimum": 1},
                    **_REFUSAL,
                },
            },
        },
    }
