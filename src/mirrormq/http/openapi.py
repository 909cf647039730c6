"""The OpenAPI 3.1 document of the API, made of its routes and of what their handlers say (`describe`).

Guarantee: every route of the application is in it, with its verb, its path and its parameters; the schemas
are those of the structs that bodies are checked against.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from mirrormq import __version__
from mirrormq.http import shapes
from mirrormq.http.api import Handler
from mirrormq.http.describe import PAGED, Described, description_of

VERSION = "3.1.0"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"

_PART = re.compile(r"\{([^}:]+)(?::[^}]*)?\}")
_ERRORS = {
    "400": "The request cannot be carried out: bad JSON, an unknown field, a value that is refused",
    "401": "Not logged in, or not allowed",
    "404": "There is no such object",
    "405": "The path has no such verb",
    "413": "The body is too long",
    "429": "Too many log-ins failed; Retry-After says when to try again",
    "503": "The node, or the one that would know, cannot answer now",
}


class Route(NamedTuple):
    """One resource of the application."""

    verb: str
    path: str
    handler: Handler


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole document."""
    found = list(routes)
    kinds = _kinds(description_of(route.handler) for route in found)
    refs, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = dict(zip(map(_key, kinds), refs, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in found:
        path = _PART.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.verb.lower()] = _operation(route, schemas)
    return {
        "openapi": VERSION,
        "info": {
            "title": "MirrorMQ HTTP API",
            "version": __version__,
            "description": "RabbitMQ 3.10's management API; below /api/mirrormq/ what it has no path for.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"basic": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic", "description": "A user's name and password"}
            },
        },
    }


def _kinds(found: Iterable[Described]) -> list[Any]:
    """Every type that is named, once."""
    kinds: dict[str, Any] = {_key(shapes.Error): shapes.Error}
    for facts in found:
        for kind in (facts.body, facts.answer):
            if kind is not None:
                kinds[_key(kind)] = kind
    return list(kinds.values())


def _key(kind: Any) -> str:
    return str(kind)


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    facts = description_of(route.handler)
    found: dict[str, Any] = {
        "operationId": _identity(route),
        "summary": _summary(route),
        "tags": [_tag(route.path)],
        "parameters": [*_path_parameters(route.path), *_query_parameters(facts)],
        "responses": _responses(facts, schemas),
        "x-needs-tag": facts.needs,
    }
    if facts.is_open:
        found["security"] = []
    if facts.body is not None and route.verb in ("POST", "PUT"):
        required = any(info.required for info in msgspec.structs.fields(facts.body))
        content = {FORM if facts.is_form else JSON: {"schema": schemas[_key(facts.body)]}}
        found["requestBody"] = {"required": required, "content": content}
    return found


def _responses(facts: Described, schemas: dict[str, Any]) -> dict[str, Any]:
    error = {JSON: {"schema": schemas[_key(shapes.Error)]}}
    found: dict[str, Any] = {}
    for status in facts.statuses:
        found[str(status)] = {"description": _SAID.get(status, "Done")}
        if status in (200, 503):
            schema = schemas[_key(facts.answer)] if facts.answer is not None else {}
            if facts.is_list:
                schema = {"oneOf": [{"type": "array", "items": schema}, _page(schema)]}
            found[str(status)]["content"] = {JSON: {"schema": schema}}
    for code, text in _ERRORS.items():
        found.setdefault(code, {"description": text} | ({} if code == "405" else {"content": error}))
    return found


_SAID = {200: "The answer", 201: "Made", 204: "Done", 503: "The check failed"}


def _page(schema: Any) -> dict[str, Any]:
    """What a list is if `page` is asked for."""
    numbers = ("filtered_count", "item_count", "page", "page_count", "page_size", "total_count")
    properties: dict[str, Any] = {name: {"type": "integer"} for name in numbers}
    properties["items"] = {"type": "array", "items": schema}
    return {"type": "object", "required": [*numbers, "items"], "properties": properties}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PART.findall(path)
    ]


def _query_parameters(facts: Described) -> list[dict[str, Any]]:
    names = [*facts.query, *(PAGED if facts.is_list else ())]
    return [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in names]


def _identity(route: Route) -> str:
    words = re.sub(r"[^A-Za-z0-9]+", "_", _PART.sub(r"by_\1", route.path)).strip("_")
    return f"{route.verb.lower()}_{words}{'_' if route.path.endswith('/') else ''}"


def _summary(route: Route) -> str:
    text = (route.handler.__doc__ or "").strip().split("\n")[0].rstrip(".")
    return text or f"{route.verb} {route.path}"


def _tag(path: str) -> str:
    parts = [part for part in path.split("/") if part and not part.startswith("{")]
    return parts[1] if parts[:1] == ["api"] and len(parts) > 1 else parts[0]
