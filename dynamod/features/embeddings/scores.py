"""POST /v1/score and /v1/rerank: how alike texts are, as the cosine of their vectors or as an engine scores pairs."""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar, cast

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.metrics import ModelMetrics
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.rules import MANY, NULL, TEXTS, WORDS, items
from dynamod.ingress.base import Job
from dynamod.ingress.large import apart
from dynamod.ingress.lowering import Lowered, Served
from dynamod.message import vectors
from dynamod.message.errors import BadRequest, EngineFailed
from dynamod.message.openai import EngineFields

from .lowering import check_count, lower_pairs, lower_texts
from .messages import RerankRequest, ScoreRequest
from .vectors import VectorEndpoint, VectorUsage, VectorWriter

Pairs = Sequence[tuple[int, int]]
"""Places of two texts, for each score."""
Named = Callable[[int], str]
Texts = tuple[Sequence[str], Pairs, Named]
"""Each text of a request once, its pairs, and how the request calls the text at a place."""
S = TypeVar("S", bound=EngineFields)


class Score(msgspec.Struct):
    """The score of a pair: a cosine, or from 0 to 1 of an engine that scores pairs."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreResponse(msgspec.Struct):
    """One score for each pair, in their order."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: VectorUsage
    object: Literal["list"] = "list"


class RankedText(msgspec.Struct):
    """A document of the request."""

    text: str


class Ranked(msgspec.Struct, omit_defaults=True):
    """A document and its score. `index`: its place in the request."""

    index: int
    relevance_score: float
    document: RankedText | None = None


class RerankResponse(msgspec.Struct):
    """Documents, the best first."""

    id: str
    model: str
    results: list[Ranked]
    usage: VectorUsage


class ScoreWriter(VectorWriter[Any]):
    """Compares vectors when all are there: in a thread, for there may be many.

    Of an engine that scores pairs there is one number for each, and nothing to compare.
    """

    pairs: Pairs = ()

    async def respond(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.Response:
        """Wait for the last vector, compare, and send the answer."""
        await self.complete()
        scores, usage = self.scores(), self.vector_usage()
        if scores is None:
            rows = self.rows()
            try:
                scores = await apart(lambda: [vectors.cosine(rows[one], rows[other]) for one, other in self.pairs])
            except ValueError as error:
                raise EngineFailed(f"the engine's vectors cannot be compared: {error}") from None
        return json_response(self._make(scores, usage), headers=headers)

    def scores(self) -> list[float] | None:
        """What the engine has said of each pair; None: it has made vectors of the texts, of which there are more."""
        rows = [row for group in self._rows for row in group]
        if len(rows) != len(self.pairs) or any(len(row) != 1 for row in rows):
            return None
        return [float(row[0]) for row in rows]


class Scoring(VectorEndpoint[S]):
    """What both share."""

    model_type = "score"

    @abstractmethod
    def texts(self, request: S) -> Texts:
        """What is compared."""

    async def lower(self, job: Job, served: Served) -> Lowered:
        """Each text once, or each pair for an engine that scores pairs."""
        texts, pairs, name = self.texts(cast("S", job.request))
        if not served.card.capabilities.pairs:
            return await lower_texts(job, served, texts, name)
        asked = [(texts[one], texts[other]) for one, other in pairs]
        return await lower_pairs(job, served, asked, lambda place: name(pairs[place][1]))

    def writer(
        self, request: S, job: Job, context: RequestContext, meter: ModelMetrics, settings: FrontendSettings
    ) -> ScoreWriter:
        """One that compares."""
        texts, pairs, _ = self.texts(request)

        def make(rows: Any, usage: VectorUsage) -> msgspec.Struct:
            return self.answer_of(request, job.id, rows, usage)

        writer = ScoreWriter(meter, context.begun, len(texts), vectors.unpack, make)
        writer.pairs = pairs
        return writer


def document_texts(request: RerankRequest) -> list[str]:
    """The documents as texts."""
    return [one if isinstance(one, str) else one.text for one in request.documents]


class Scores(Scoring[ScoreRequest]):
    """Scores of pairs."""

    path = "/v1/score"
    summary = "How alike texts are"
    request = ScoreRequest
    response = ScoreResponse
    values: ClassVar[Mapping[str, Any]] = {
        "ScoreRequest": {
            "examples": [{"text_1": "one", "text_2": "two"}],
            "properties": {"text_1": TEXTS, "text_2": WORDS, "nvext": NULL},
        }
    }
    label = "score"

    def texts(self, request: ScoreRequest) -> Texts:
        """One text of a side may stand for all of it."""
        ones, others = (given if isinstance(given, list) else [given] for given in (request.text_1, request.text_2))
        count, most = len(ones), max(len(ones), len(others))
        pairs = [(at if count > 1 else 0, count + (at if len(others) > 1 else 0)) for at in range(most)]

        def name(place: int) -> str:
            field, at = ("text_1", place) if place < count else ("text_2", place - count)
            return f"{field}[{at}]" if isinstance(getattr(request, field), list) else field

        return [*ones, *others], pairs, name

    def check(self, request: ScoreRequest) -> None:
        """One text for all, or as many as on the other side."""
        super().check(request)
        sides = [len(given) if isinstance(given, list) else 1 for given in (request.text_1, request.text_2)]
        if 1 not in sides and sides[0] != sides[1]:
            why = f"`text_1` has {sides[0]} texts and `text_2` {sides[1]}: equally many, or one of them has one"
            raise BadRequest(why, param="text_1")
        for side, name in zip(sides, ("text_1", "text_2"), strict=True):
            check_count(side, name)
        _check_texts(*self.texts(request))

    def answer_of(self, request: ScoreRequest, job_id: str, rows: list[Any], usage: VectorUsage) -> ScoreResponse:
        """`rows`: the scores."""
        found = [Score(at, score) for at, score in enumerate(rows)]
        return ScoreResponse(f"score-{job_id}", int(time.time()), request.model, found, usage)


class Rerank(Scoring[RerankRequest]):
    """Documents by their likeness to a query."""

    path = "/v1/rerank"
    summary = "Documents, the one most like a query first"
    request = RerankRequest
    response = RerankResponse
    values: ClassVar[Mapping[str, Any]] = {
        "RerankRequest": {
            "examples": [{"query": "one", "documents": ["two", "three"]}],
            "properties": {"query": WORDS, "documents": items(WORDS, **MANY), "nvext": NULL},
        }
    }
    label = "rerank"

    def texts(self, request: RerankRequest) -> Texts:
        """The query, and each document with it."""
        texts = [request.query, *document_texts(request)]
        pairs = [(0, at) for at in range(1, len(texts))]
        return texts, pairs, lambda place: f"documents[{place - 1}]" if place else "query"

    def check(self, request: RerankRequest) -> None:
        """Not too many documents, and none empty."""
        super().check(request)
        check_count(len(request.documents), "documents")
        _check_texts(*self.texts(request))

    def answer_of(self, request: RerankRequest, job_id: str, rows: list[Any], usage: VectorUsage) -> RerankResponse:
        """`rows`: the scores. Of equal scores the document that came first."""
        texts, shown = document_texts(request), request.return_documents is not False
        order = sorted(range(len(rows)), key=lambda at: -cast("float", rows[at]))[: request.top_n or len(rows)]
        found = [Ranked(at, rows[at], RankedText(texts[at]) if shown else None) for at in order]
        return RerankResponse(f"rerank-{job_id}", request.model, found, usage)


class PlainScores(Scores):
    """The same at the path that some clients of vLLM use."""

    path = "/score"


class PlainRerank(Rerank):
    """The same at the path that some clients of vLLM use."""

    path = "/rerank"


class SecondRerank(Rerank):
    """The same at the path of Cohere's second API."""

    path = "/v2/rerank"


def _check_texts(texts: Sequence[str], _pairs: Pairs, name: Named) -> None:
    for place, text in enumerate(texts):
        if not text:
            raise BadRequest(f"`{name(place)}` is empty", param=name(place))
