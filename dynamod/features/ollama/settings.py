"""Settings of the frontend that Ollama's API adds."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option


class OllamaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What clients of Ollama may ask for."""

    ollama_api: Annotated[
        bool,
        Meta(description="Ollama's API at /api/...; off: its routes answer 404"),
        Option("BOOL", "serve Ollama's API at /api/... (default: on)", "DYN_OLLAMA_API"),
    ] = True
    ollama_manage_models: Annotated[
        bool,
        Meta(description="/api/pull downloads models to this machine, /api/delete deletes them from its cache"),
        Option(
            "BOOL",
            "let clients download and delete models with /api/pull and /api/delete (default: off)",
            "DYN_OLLAMA_MANAGE_MODELS",
        ),
    ] = False
