"""POST /api/embed and POST /api/embeddings, on the feature `embeddings`."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, ClassVar, TypeVar, cast

import msgspec
from aiohttp import web

from dynamod.features.embeddings.endpoints import check_dimensions
from dynamod.features.embeddings.lowering import check_count, lower_body, lower_texts
from dynamod.features.embeddings.vectors import VectorEndpoint, VectorUsage, VectorWriter
from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.endpoint import Frontend
from dynamod.ingress.api.rules import NULL, TEXT, WORDS, either, items
from dynamod.ingress.base import Job
from dynamod.ingress.lowering import Lowered, Served
from dynamod.message import vectors
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest
from dynamod.message.openai import EngineFields
from dynamod.preprocess.model import Model

from .loading import load_or_unload
from .messages import OllamaEmbeddingsRequest, OllamaEmbedRequest
from .named import OllamaEndpoint
from .options import fields_of

E = TypeVar("E", bound=EngineFields)


class OllamaEmbedResponse(msgspec.Struct):
    """One vector for each text, in their order. Durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0


class OllamaEmbeddingsResponse(msgspec.Struct):
    """The vector of the text."""

    embedding: list[float]


class _Vectors(OllamaEndpoint[E], VectorEndpoint[E]):
    """What both share."""

    model_type = "embeddings"
    timed = True
    errors: ClassVar[tuple[int, ...]] = (*VectorEndpoint.errors, 409)

    @abstractmethod
    def texts(self, request: E) -> list[str]:
        """The texts; none: the model is only loaded."""

    def check(self, request: E) -> None:
        """Not too many texts, and of several none is empty."""
        super().check(request)
        texts = self.texts(request)
        check_count(len(texts), "input")
        if "" in texts:
            param = f"input[{texts.index('')}]"
            raise BadRequest(f"`{param}` is empty", param=param)

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: E, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Let the backend make vectors; a text engine gets the body that OpenAI's API has."""
        fields_of(getattr(asked, "options", None))
        texts, dimensions = self.texts(asked), getattr(asked, "dimensions", None)
        check_dimensions(dimensions, card)
        if not texts:
            await load_or_unload(frontend, asked.model, asked.keep_alive)
            return json_response(self.answer_of(asked, "", [], VectorUsage(0, 0)))
        if frontend.backend.model(asked.model) is None:
            sent = {"model": asked.model, "input": texts, "dimensions": dimensions}
            body = msgspec.json.encode({name: value for name, value in sent.items() if value is not None})
        return await super().answer(frontend, context, asked, card, body)

    async def lower(self, job: Job, served: Served) -> Lowered:
        """Groups of texts, each cut to the context unless the request forbids that."""
        request = cast("E", job.request)
        texts: Sequence[str | list[int]] = self.texts(request)
        if served.model is None:
            return lower_body(job, served)
        length = served.card.context_length
        if length and getattr(request, "truncate", None) is not False and any(len(text) > length for text in texts):
            texts = await asyncio.to_thread(_cut, served.model, cast("list[str]", texts), length)
        return await lower_texts(job, served, texts, lambda at: f"input[{at}]")

    def writer(
        self, request: E, job: Job, context: RequestContext, meter: ModelMetrics, settings: FrontendSettings
    ) -> VectorWriter[msgspec.Raw]:
        """One that keeps the JSON of each vector."""
        dimensions = getattr(request, "dimensions", None)

        def row(data: bytes) -> msgspec.Raw:
            if dimensions is not None and len(data) != 4 * dimensions:
                data = vectors.cut(data, dimensions)
            return msgspec.Raw(msgspec.json.encode(vectors.unpack(data).tolist()))

        def make(rows: list[Any], usage: VectorUsage) -> msgspec.Struct:
            made = self.answer_of(request, job.id, rows, usage)
            if isinstance(made, OllamaEmbedResponse):
                made.total_duration = int((perf_counter() - context.begun) * 1e9)
                made.load_duration = int(writer.details.metrics(writer.first, 0.0, 0, 0).queue_time_ms * 1e6)
            return made

        writer: VectorWriter[msgspec.Raw] = VectorWriter(meter, context.begun, len(self.texts(request)), row, make)
        return writer


class Embed(_Vectors[OllamaEmbedRequest]):
    """Vectors of texts."""

    path = "/api/embed"
    summary = "Vectors of texts, as Ollama has it"
    request = OllamaEmbedRequest
    response = OllamaEmbedResponse
    label = "ollama_embed"
    values: ClassVar[Mapping[str, Any]] = {
        "OllamaEmbedRequest": {
            "examples": [{"input": ["one", "two"]}],
            "properties": {"input": either(NULL, TEXT, items(WORDS)), "dimensions": NULL, "nvext": NULL},
        }
    }

    def texts(self, request: OllamaEmbedRequest) -> list[str]:
        """All of them; none for an empty text."""
        if isinstance(request.input, list):
            return request.input
        return [request.input] if request.input else []

    def answer_of(
        self, request: OllamaEmbedRequest, job_id: str, rows: list[Any], usage: VectorUsage
    ) -> OllamaEmbedResponse:
        """`rows`: JSON of the vectors."""
        return OllamaEmbedResponse(request.model, rows, prompt_eval_count=usage.prompt_tokens)


class Embeddings(_Vectors[OllamaEmbeddingsRequest]):
    """The vector of a text."""

    path = "/api/embeddings"
    summary = "The vector of one text, as older clients of Ollama ask for it"
    request = OllamaEmbeddingsRequest
    response = OllamaEmbeddingsResponse
    label = "ollama_embeddings"
    values: ClassVar[Mapping[str, Any]] = {
        "OllamaEmbeddingsRequest": {"examples": [{"prompt": "one"}], "properties": {"nvext": NULL}}
    }

    def texts(self, request: OllamaEmbeddingsRequest) -> list[str]:
        """The one text."""
        return [request.prompt] if request.prompt else []

    def answer_of(
        self, request: OllamaEmbeddingsRequest, job_id: str, rows: list[Any], usage: VectorUsage
    ) -> OllamaEmbeddingsResponse:
        """`rows`: JSON of the vector."""
        return OllamaEmbeddingsResponse(rows[0] if rows else [])


def _cut(model: Model, texts: Sequence[str], length: int) -> list[str | list[int]]:
    """The texts, and ids instead of each text that has more tokens than the context, cut there. Safe in a thread.

    The token that the tokenizer puts at the end of a text stays.
    """
    encode = model.tokenizer.encode
    last = encode("", True)[1:]
    found: list[str | list[int]] = []
    for text in texts:
        ids = encode(text, True) if len(text) > length else []
        found.append([*ids[: length - len(last)], *last] if len(ids) > length else text)
    return found
