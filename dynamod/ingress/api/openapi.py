"""/openapi.json: made from the table of endpoints and from the structs that requests are decoded with."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

import dynamod
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.fields import members_off

from .endpoint import Bytes, Endpoint
from .rules import SHARED, tighten

_REF = "#/components/schemas/"

_ERRORS = {
    400: "The request is wrong; `param` names the field",
    401: "No API key, or a wrong one",
    403: "A setting of the server does not allow it",
    404: "Unknown model",
    409: "What the request names is in use, or has ended",
    408: "Nothing of the body has come for a minute",
    413: "The body is too large",
    415: "The body is not said to be JSON, or has an encoding that is not served",
    429: "The API key allows no more now; see Retry-After",
    422: "Requests like this one have crashed workers",
    500: "A mistake of the server",
    502: "The engine failed",
    503: "No worker can take the request now; see Retry-After",
    507: "There is no room to keep more",
    504: "A clock of the request passed",
}
_TEXT = {"type": "string"}
_MAYBE_TEXT = {"type": ["string", "null"]}


SERVER = "server"
"""The group of routes about the server itself."""
NVEXT = "NvExt"
"""The schema of the members that features extend."""
OPTIONAL = ("/health/progress",)
"""Paths of servers in a process of a daemon only."""


def document(endpoints: Sequence[Endpoint], settings: FrontendSettings, more: Collection[str] = ()) -> dict[str, Any]:
    """The OpenAPI 3.1 description of a server with these endpoints. `more`: paths that only some servers have."""
    header = {"type": "apiKey", "in": "header", "name": "x-api-key"}
    schemes = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}, "header": header}}
    needed: list[dict[str, list[str]]] = [{"key": []}, {"header": []}]
    schemas = _schemas(endpoints, settings)
    for name in members_off():  # requests with these are refused
        schemas.get(NVEXT, {}).get("properties", {}).pop(name, None)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, settings)
        operation["tags"] = [_tag(endpoint.path)]
        operation["security"] = needed if settings.guarded else [{}, *needed]
        _show_example(operation, schemas)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    for path, methods in _server_paths().items():
        if path not in OPTIONAL or path in more:
            paths[path] = {method: {**operation, "tags": [SERVER]} for method, operation in methods.items()}
    tags = dict.fromkeys(tag for methods in paths.values() for one in methods.values() for tag in one["tags"])
    status = ("/health", "/health/progress", "/openapi.json", "/docs", "/metrics")
    for path in paths.keys() & {*status} if settings.guarded and settings.guard_status else ():
        paths[path]["get"]["security"] = needed
    for path, methods in paths.items():
        for method, operation in methods.items():
            name = "".join(word.capitalize() for word in path.removesuffix(".json").split("/"))
            operation["operationId"] = method + (name.replace("{id}", "One") or "Root")
    return {
        "openapi": "3.1.0",
        "info": {"title": "dynamod", "version": dynamod.__version__, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": {"schemas": schemas, **schemes},
    }


def _tag(path: str) -> str:
    """The group of a route: the first folder of its path after the version of the API."""
    folders = [word for word in path.split("/") if word and word not in ("v1", "v2")]
    return folders[0] if folders else SERVER


def _show_example(operation: dict[str, Any], schemas: Mapping[str, Any]) -> None:
    """The first example of a request's type also stands at the body of the route."""
    for body in operation.get("requestBody", {}).get("content", {}).values():
        name = body["schema"].get("$ref", "").removeprefix(_REF)
        if found := schemas.get(name, {}).get("examples"):
            body["example"] = found[0]


def _operation(endpoint: Endpoint, settings: FrontendSettings) -> dict[str, Any]:
    good = {"text/plain": {"schema": _TEXT}}
    if endpoint.response is not None and issubclass(endpoint.response, Bytes):
        good = {endpoint.response.media_type: {"schema": {"type": "string", "format": "binary"}}}
    elif endpoint.response is not None:
        good = _json(endpoint.response.__name__)
    if endpoint.streams is True:
        good["text/event-stream"] = {"schema": {"$ref": _REF + "Event"}}
    elif endpoint.streams and endpoint.response is not None:
        good[endpoint.streams] = {"schema": {"$ref": _REF + endpoint.response.__name__}}
    responses = {"200": {"description": "The answer, whole or streamed" if endpoint.streams else "OK", "content": good}}
    for status in endpoint.errors:
        responses[str(status)] = {"description": _ERRORS[status], "content": _json(endpoint.error_form.schema)}
    if settings.client_keys_file and endpoint.method == "POST":
        responses["429"] = {"description": _ERRORS[429], "content": _json(endpoint.error_form.schema)}
    if 503 in endpoint.errors:
        responses.setdefault(str(settings.overload_status), responses["503"])
    operation: dict[str, Any] = {"summary": endpoint.summary, "responses": responses}
    if endpoint.request is not None:
        operation["requestBody"] = {"required": True, "content": _json(endpoint.request.__name__)}
    if endpoint.form:
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": {**endpoint.form}}}}
    schema = {"type": "string", "minLength": 1}
    parameters = [{"name": "id", "in": "path", "required": True, "schema": schema}] if endpoint.prefix else []
    parameters += [{"name": name, "in": "query", "schema": {**asked}} for name, asked in endpoint.query.items()]
    if parameters:
        operation["parameters"] = parameters
    return operation


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF + name}}}


def _server_paths() -> dict[str, Any]:
    """What the HTTP server answers on its own."""

    def get(summary: str, content: dict[str, Any], *more: str) -> dict[str, Any]:
        statuses = ("200", *more)
        return {
            "get": {
                "summary": summary,
                "responses": {status: {"description": summary, "content": content} for status in statuses},
            }
        }

    return {
        "/health": get("Whether a model can be asked", _json("Health"), "503"),
        "/health/progress": get("What each worker does, and the age of its last progress", _json("Progress"), "503"),
        "/": get(
            "A page for browsers, links for others",
            {"application/json": {"schema": {"type": "object"}}, "text/html": {"schema": _TEXT}},
        ),
        "/version": get("The release of this server", {"application/json": {"schema": _object({"version": _TEXT})}}),
        "/ping": get("The same as /health", _json("Health"), "503"),
        "/live": get("Whether the process answers", _json("Live")),
        "/openapi.json": get("This document", {"application/json": {"schema": {"type": "object"}}}),
        "/docs": get("This document as a page", {"text/html": {"schema": _TEXT}}),
        "/metrics": get("Prometheus metrics", {"text/plain": {"schema": _TEXT}}),
    }


def _schemas(endpoints: Sequence[Endpoint], settings: FrontendSettings) -> dict[str, Any]:
    both = (struct for one in endpoints for struct in (one.request, one.response))
    structs = [struct for struct in both if struct is not None and not issubclass(struct, Bytes)]
    _, schemas = msgspec.json.schema_components(structs, ref_template=_REF + "{name}")
    if settings.unknown_fields == "ignore":
        for schema in schemas.values():
            schema.pop("additionalProperties", None)
    tighten(schemas, SHARED)
    for one in endpoints:
        if one.request is not None and one.rules:
            schemas[one.request.__name__]["allOf"] = [*one.rules]
        tighten(schemas, one.values)
    return schemas | _SHARED


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "properties": required | optional, "required": list(required)}


_SHARED: dict[str, Any] = {
    "Event": {
        "description": "One server-sent event: `data` is a chunk as JSON, or [DONE]; `event`: error",
        "type": "object",
        "properties": {"data": _TEXT, "event": _TEXT},
    },
    "Error": _object(
        {"error": _object({"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _MAYBE_TEXT})},
    ),
    "TextError": _object({"error": _TEXT}),
    "MessagesError": _object(
        {"type": {"const": "error"}, "error": _object({"type": _TEXT, "message": _TEXT}), "request_id": _TEXT},
    ),
    "Health": _object(
        {"status": {"enum": ["healthy", "unhealthy"]}, "instances": {"type": "array"}},
        endpoints={"type": "array", "items": _TEXT},
        message=_TEXT,
    ),
    "Progress": _object(
        {"status": {"enum": ["healthy", "unhealthy"]}, "workers": {"type": "array", "items": {"type": "object"}}},
        message=_TEXT,
    ),
    "Live": _object({"status": {"const": "live"}, "message": _TEXT}),
}
