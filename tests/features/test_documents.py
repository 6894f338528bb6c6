"""The routes of features in /openapi.json: all are there, and answers are as the document says."""

from typing import Any

import pytest
import schemathesis

from dynamod.extension.installed import enabled
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.openapi import document
from dynamod.ingress.api.table import endpoints
from tests.ingress.test_any_request import OF_DOCUMENT, check_answer, of_document

MADE = document(endpoints(), FrontendSettings())
PATHS = {feature.name: sorted({one.path for one in feature.endpoints()}) for feature in enabled()}
ROUTES = {
    "anthropic": {
        *("/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/v1/models/{id}", "/v1/messages/batches"),
        *(f"/v1/messages/batches/{{id}}{end}" for end in ("", "/cancel", "/results")),
    },
    "batches": {
        *("/v1/files", "/v1/files/{id}", "/v1/files/{id}/content"),
        *("/v1/batches", "/v1/batches/{id}", "/v1/batches/{id}/cancel"),
    },
    "embeddings": {"/v1/embeddings", "/v1/score", "/v1/rerank", "/score", "/rerank", "/v2/rerank"},
    "lora": {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"},
    "ollama": {
        *(f"/api/{name}" for name in ("chat", "generate", "embed", "embeddings", "tags", "show", "ps", "version")),
        *(f"/api/{name}" for name in ("pull", "delete", "create", "copy", "push")),
    },
    "on_demand": {"/running", "/models/load", "/models/unload"},
    "tokenize": {"/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize", "/v1/chat/completions/render"},
    "responses": {
        *("/v1/responses", "/v1/responses/{id}", "/v1/responses/input_tokens", "/v1/responses/{id}/input_items"),
        *("/v1/responses/{id}/cancel", "/v1/responses/compact"),
    },
}


NOT_ALL = (
    "/input_tokens",
    "/render",
    "/compact",
    *(f"/api/{name}" for name in ("pull", "delete", "create", "copy", "push")),
)
"""Routes that refuse some bodies that the document allows."""


@pytest.fixture
def described(request: pytest.FixtureRequest) -> Any:
    """The routes of one feature in the document of all."""
    return of_document(request, {**MADE, "paths": {path: MADE["paths"][path] for path in PATHS[request.param]}})


@pytest.mark.parametrize("feature", PATHS)
def test_the_document_covers_every_route(feature: str) -> None:
    assert set(PATHS[feature]) == ROUTES.get(feature, set())
    assert MADE["paths"].keys() >= set(PATHS[feature])


@pytest.mark.parametrize("described", [name for name, paths in PATHS.items() if paths], indirect=True)
@OF_DOCUMENT
@schemathesis.pytest.from_fixture("described").parametrize()
def test_answers_are_as_the_document_says(threaded: Any, case: Any) -> None:
    turns = case.body.get("messages") if isinstance(case.body, dict) else None
    last = turns[-1] if isinstance(turns, list) and turns else None
    if "/messages" in case.path and isinstance(last, dict) and last.get("role") == "assistant":
        turns.append({"role": "user", "content": "x"})  # what the template can go on from is not in the document
    # Counting and rendering look at the model: its context and template, which a document cannot know. Others of
    # these routes need a setting.
    check_answer(threaded, case, accepts=not case.path.endswith(NOT_ALL))
