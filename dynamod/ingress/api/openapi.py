"""/openapi.json: the routes and forms, made from the same structs and ranges that requests are checked with."""

from typing import Any

import msgspec
from aiohttp import web

import dynamod
from dynamod.http.context import RequestContext
from dynamod.http.errors import json_response
from dynamod.http.settings import FrontendSettings
from dynamod.message.openai import ChatRequest, CompletionRequest, NvExt

from .limits import CHAT, COMPLETION, NVEXT, Range
from .schemas import ANSWERS

_REF = "#/components/schemas/"

_ERRORS = {
    "400": "The request is wrong; `param` names the field",
    "401": "No API key, or a wrong one",
    "404": "Unknown model",
    "413": "The body is too large",
    "500": "A mistake of the server",
    "502": "The engine failed",
    "503": "Nobody can take the request now; see Retry-After",
    "504": "A clock of the request passed",
}


class Document:
    """Made once, when first asked for."""

    def __init__(self, settings: FrontendSettings) -> None:
        self._settings = settings
        self._made: dict[str, Any] | None = None

    async def get(self, request: web.BaseRequest, context: RequestContext) -> web.Response:
        """GET /openapi.json."""
        if self._made is None:
            self._made = document(self._settings)
        return json_response(self._made)


def document(settings: FrontendSettings) -> dict[str, Any]:
    """The OpenAPI 3.1 description of this server."""
    schemes: dict[str, Any] = {}
    guard: list[dict[str, Any]] = []
    if settings.api_keys:
        schemes = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        guard = [{"key": []}]
    paths: dict[str, Any] = {
        "/v1/chat/completions": {"post": _post("ChatRequest", "ChatAnswer", "Answer a conversation", settings)},
        "/v1/completions": {"post": _post("CompletionRequest", "CompletionAnswer", "Continue a text", settings)},
        "/v1/models": {"get": _get("Models that can be asked for", {"200": "ModelList"}, "401")},
        "/v1/models/{id}": {"get": _get("One model; its id may contain slashes", {"200": "Model"}, "401", "404")},
        "/health": {"get": _get("Whether anybody can do work", {"200": "Health", "503": "Health"})},
        "/live": {"get": _get("Whether the process answers", {"200": "Live"})},
        "/openapi.json": {"get": _get("This document", {"200": "Any"})},
        "/metrics": {
            "get": {
                "summary": "Prometheus metrics",
                "responses": {"200": {"description": "OK", "content": {"text/plain": {"schema": {"type": "string"}}}}},
            }
        },
    }
    paths["/v1/models/{id}"]["get"]["parameters"] = [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    ]
    for path, methods in paths.items():
        for method, operation in methods.items():
            operation["operationId"] = method + "".join(word.capitalize() for word in path.split("/"))
            operation["operationId"] = operation["operationId"].replace("{id}", "One").replace(".json", "")
            if path.startswith("/v1/") and guard:
                operation["security"] = guard
    return {
        "openapi": "3.1.0",
        "info": {"title": "dynamod", "version": dynamod.__version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": _schemas(), **schemes},
    }


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF + name}}}


def _errors(*statuses: str) -> dict[str, Any]:
    return {status: {"description": _ERRORS[status], "content": _json("Error")} for status in statuses}


def _get(summary: str, forms: dict[str, str], *errors: str) -> dict[str, Any]:
    answers = {status: {"description": summary, "content": _json(form)} for status, form in forms.items()}
    return {"summary": summary, "responses": answers | _errors(*errors)}


def _post(request: str, answer: str, summary: str, settings: FrontendSettings) -> dict[str, Any]:
    good = _json(answer) | {"text/event-stream": {"schema": {"$ref": _REF + "Event"}}}
    answers = {"200": {"description": "The answer, whole or streamed", "content": good}} | _errors(*_ERRORS)
    overload = str(settings.overload_status)
    answers |= {overload: answers.get(overload, answers["503"])}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _json(request)},
        "responses": answers,
    }


def _schemas() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components([ChatRequest, CompletionRequest], ref_template=_REF + "{name}")
    for name, ranges in ((ChatRequest, CHAT), (CompletionRequest, COMPLETION), (NvExt, NVEXT)):
        schema = schemas[name.__name__]
        schema.pop("additionalProperties", None)  # unknown fields are ignored unless a setting says otherwise
        for field, allowed in ranges.items():
            _bound(schema["properties"][field], allowed)
    schemas["ChatRequest"]["properties"]["messages"]["minItems"] = 1
    return schemas | ANSWERS


def _bound(schema: dict[str, Any], allowed: Range) -> None:
    for form in schema.get("anyOf", [schema]):
        if form.get("type") in ("integer", "number"):
            form["exclusiveMinimum" if allowed.above else "minimum"] = allowed.low
            form["maximum"] = allowed.high
