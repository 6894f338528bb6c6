"""POST /v1/embeddings."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import msgspec

from dynamod.http.context import RequestContext
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.rules import NULL, TEXTS_OR_IDS, only
from dynamod.ingress.base import Job
from dynamod.ingress.lowering import Lowered, Served
from dynamod.message import vectors
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, unsupported

from .lowering import check_count, lower_body, lower_texts
from .messages import EmbeddingsRequest
from .vectors import VectorEndpoint, VectorUsage, VectorWriter

_FORMATS = (None, "float", "base64")


class Embedding(msgspec.Struct):
    """One vector of unit length: numbers, or base64 of little-endian 32-bit floats."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingsResponse(msgspec.Struct):
    """One vector for each input, in their order."""

    data: list[Embedding]
    model: str
    usage: VectorUsage
    object: Literal["list"] = "list"


class Embeddings(VectorEndpoint[EmbeddingsRequest]):
    """Vectors of texts."""

    path = "/v1/embeddings"
    summary = "Vectors of texts"
    request = EmbeddingsRequest
    response = EmbeddingsResponse
    label = "embeddings"
    model_type = "embeddings"
    rules = (only(encoding_format=_FORMATS),)
    # Some models have `dimensions`, and `nvext` may name an instance.
    values: ClassVar[Mapping[str, Any]] = {
        "EmbeddingsRequest": {
            "examples": [{"input": ["one", "two"]}],
            "properties": {"input": TEXTS_OR_IDS, "dimensions": NULL, "nvext": NULL},
        }
    }

    def check(self, request: EmbeddingsRequest) -> None:
        """The inputs too: all of one kind, none of them empty, and not too many."""
        super().check(request)
        if request.encoding_format not in _FORMATS:
            why = f"`encoding_format` is {request.encoding_format[:40]!r}; it must be float or base64"
            raise BadRequest(why, param="encoding_format")
        given = request.input
        kind = type(given[0]) if isinstance(given, list) else str
        for place, one in enumerate(given if isinstance(given, list) else ()):
            if type(one) is not kind:
                raise BadRequest("`input` mixes strings, ids and lists", param=f"input[{place}]")
        texts = inputs_of(request)
        check_count(len(texts), "input")
        for place, text in enumerate(texts):
            if not text:
                param = "input" if isinstance(given, str) else f"input[{place}]"
                raise BadRequest(f"`{param}` is empty", param=param)

    async def lower(self, job: Job, served: Served) -> Lowered:
        """Groups of inputs for a token engine, the whole request for a text engine."""
        request = cast("EmbeddingsRequest", job.request)
        check_dimensions(request.dimensions, served.card)
        if served.model is None:
            return lower_body(job, served)
        several = isinstance(request.input, list) and not isinstance(request.input[0], int)
        return await lower_texts(job, served, inputs_of(request), lambda at: f"input[{at}]" if several else "input")

    def writer(
        self,
        request: EmbeddingsRequest,
        job: Job,
        context: RequestContext,
        meter: ModelMetrics,
        settings: FrontendSettings,
    ) -> VectorWriter[msgspec.Raw]:
        """One that keeps the JSON of each vector."""
        words, dimensions = request.encoding_format == "base64", request.dimensions

        def row(data: bytes) -> msgspec.Raw:
            if dimensions is not None and len(data) != 4 * dimensions:
                data = vectors.cut(data, dimensions)
            made: Any = base64.b64encode(data).decode() if words else vectors.unpack(data).tolist()
            return msgspec.Raw(msgspec.json.encode(made))

        return VectorWriter(
            meter, context.begun, len(inputs_of(request)), row, lambda *found: self.answer_of(request, job.id, *found)
        )

    def answer_of(
        self, request: EmbeddingsRequest, job_id: str, rows: list[Any], usage: VectorUsage
    ) -> EmbeddingsResponse:
        """`rows`: JSON of the vectors."""
        return EmbeddingsResponse([Embedding(at, row) for at, row in enumerate(rows)], request.model, usage)


def inputs_of(request: EmbeddingsRequest) -> Sequence[str | list[int]]:
    """The inputs one by one: each a string, or token ids."""
    given = request.input
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [cast("list[int]", given)]
    return cast("list[str | list[int]]", given)


def check_dimensions(dimensions: int | None, card: ModelCard) -> None:
    """Raises BadRequest for vectors that the model does not have."""
    if dimensions is None:
        return
    if not card.capabilities.matryoshka:
        why = f"`dimensions`: the vectors of model {card.name!r} are not made to be cut"
        raise unsupported("dimensions", why)
    if card.embedding_length and dimensions > card.embedding_length:
        why = f"`dimensions` is {dimensions}; the vectors of model {card.name!r} have {card.embedding_length}"
        raise BadRequest(why, param="dimensions")
