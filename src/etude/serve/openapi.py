"""The OpenAPI document of the server, made from the models that read its requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from etude import __version__
from etude.serve.dialects.exchange import Wire

_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "object"}}}
_REFUSALS = {
    "400": "The request makes no sense, or asks for what is not supported.",
    "401": "The key is missing or wrong.",
    "404": "There is no such model or place.",
    "408": "The request took too long to arrive.",
    "413": "The request is too large.",
    "429": "Too many requests are in flight.",
    "503": "The engine failed, or the server is being stopped.",
    "529": "Too many requests are in flight (Anthropic's status).",
}


def document(asked: Mapping[str, type[Wire]], pages: Mapping[str, str], streamed: Iterable[str]) -> dict[str, Any]:
    """Return the document. `asked` are the models of requests by path, `pages` what can be read by GET, `streamed` the
    paths whose answers may be streams of events."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    events = set(streamed)
    for path, model in asked.items():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        # Models of different protocols have the same names: each path has its own.
        prefix = path.strip("/").replace("/", "_")
        schemas |= _renamed(schema.pop("$defs", {}), prefix)
        content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
        if path in events:
            content["text/event-stream"] = {}
        paths[path] = {
            "post": {
                "summary": (model.__doc__ or "").partition("\n")[0] or path,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": _with_refs(schema, prefix)}},
                },
                "responses": {"200": {"description": "The answer.", "content": content}} | _refusals(_REFUSALS),
            }
        }
    for path, summary in pages.items():
        few = {status: _REFUSALS[status] for status in ("401", "404", "503")}
        paths[path] = {"get": {"summary": summary, "responses": {"200": {"description": "The page."}} | _refusals(few)}}
        if "{name}" in path:
            named = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            paths[path]["get"]["parameters"] = [named]
    return {
        "openapi": "3.1.0",
        "info": {"title": "etude serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _refusals(statuses: Mapping[str, str]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": text, "content": content} for status, text in statuses.items()}


def _renamed(models: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {f"{prefix}_{name}": _with_refs(model, prefix) for name, model in models.items()}


def _with_refs(schema: Any, prefix: str) -> Any:
    """Return a schema whose references have the prefix."""
    start = "#/components/schemas/"
    if isinstance(schema, list):
        return [_with_refs(part, prefix) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"{start}{prefix}_{value.removeprefix(start)}"
        if key == "$ref" and isinstance(value, str)
        else _with_refs(value, prefix)
        for key, value in schema.items()
    }
