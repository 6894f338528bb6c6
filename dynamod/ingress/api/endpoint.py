"""What an endpoint of the API is. Each one is a module of its own and a line in `table`.

Endpoint            any method of a path
  + BodyEndpoint    reads a JSON body about one model
    + EngineEndpoint    whose answer engines make
      + Generation      and is text: `generate`
"""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, Generic, TypeVar, get_args

import msgspec
from aiohttp import web

from dynamod.extension.installed import enabled
from dynamod.http.body import BodyBudget, check_json_type, read_body
from dynamod.http.context import RequestContext
from dynamod.http.errors import OPENAI, ErrorForm
from dynamod.http.metrics import ModelMetrics
from dynamod.http.outlet import Outlets
from dynamod.http.settings import FrontendSettings
from dynamod.http.turns import Turns
from dynamod.ingress.base import NO_CALLS, Backend, CallForm, Job
from dynamod.ingress.fields import check_features, extended
from dynamod.ingress.large import apart
from dynamod.ingress.lowering import Lowered, Served
from dynamod.ingress.memory import trim_memory
from dynamod.message.discovery import ModelCard, ReasoningField
from dynamod.message.errors import BadRequest, NotFound, Overloaded, RequestError, TimedOut
from dynamod.message.openai import EngineFields, ModelRequest
from dynamod.observe.logs import bound
from dynamod.preprocess.model import Model
from dynamod.preprocess.parse import LARGE, Parser

from .response import ResponseWriter
from .unserved import Unserved, body_without, field_of, left_out


class Frontend:
    """What the endpoints of one server share: settings, the backend, ids of jobs in progress, what is kept.

    `parts`: what features keep, by their names. `where()`: names of the node and of the process. `control`: path of the
    daemon's control socket; empty: there is no daemon. `outlets`: of the server's streams.

    Raises UserError when a folder of what is kept cannot be used.
    """

    def __init__(
        self,
        settings: FrontendSettings,
        backend: Backend,
        where: Callable[[], tuple[str, str]] = lambda: ("", ""),
        control: str = "",
        outlets: Outlets | None = None,
    ) -> None:
        self.where, self.control = where, control
        self.settings = settings
        self.backend = backend
        self.ids: set[str] = set()
        self.bodies = BodyBudget(settings.bodies_limit, _trim)
        self.body_limit = settings.body_limit
        self.turns = Turns(outlets or Outlets())
        self.parts = {one.name: one.part(settings) for one in enabled() if one.part is not None}

    def unused_id(self, wanted: str) -> str:
        """`wanted`, or with a random end when a request of that id is being served."""
        return f"{wanted}-{secrets.token_hex(4)}" if wanted in self.ids else wanted

    def models(self, context: RequestContext) -> Mapping[str, ModelCard]:
        """Models that a request may name now; the client's key may allow only some, by their names or aliases."""
        return self._allowed(self.backend.models(), context)

    def askable(self, context: RequestContext) -> Mapping[str, ModelCard]:
        """Those of them that a request would be placed for now, by name."""
        return self._allowed(self.backend.askable(), context)

    def _allowed(self, models: Mapping[str, ModelCard], context: RequestContext) -> Mapping[str, ModelCard]:
        if context.caller.client is None:
            return models
        return {
            name: card
            for name, card in models.items()
            if context.caller.may_ask(name) or context.caller.may_ask(card.name)
        }

    def pick(self, name: str, type_: str, context: RequestContext) -> tuple[str, ModelCard]:
        """The model asked for, by its own name, with its card. `type_`: what it must serve.

        Without a name it is the only one, aliases and adapters apart.
        Raises BadRequest, NotFound or Overloaded.
        """
        served = self.backend.models()
        models = self._allowed(served, context)
        if not models or (name and name not in models):
            raise self._unserved(name, served, models, context)
        if not name:
            below = {card.base for card in models.values()}
            if len(below) > 1:
                raise BadRequest(f"`model` is required; served: {_names(models)}", param="model")
            name = next(iter(below & models.keys()), "") or next(iter(models))
        card = models[name]
        if type_ and type_ not in card.types:
            raise NotFound(f"the model `{name}` does not serve {type_}", param="model")
        return card.name, card

    def _unserved(
        self, name: str, served: Mapping[str, ModelCard], models: Mapping[str, ModelCard], context: RequestContext
    ) -> RequestError:
        """Why a request for a model cannot be served. `models`: what the client may ask of `served`."""
        coming = self._allowed(self.backend.loading(), context)
        if name in coming:
            return Overloaded(f"the model `{name}` is being loaded", retry_after=1)
        if coming and not name:
            return Overloaded(f"no model is served yet; being loaded: {_names(coming)}", retry_after=1)
        if not served:
            return Overloaded("no model is being served; start a worker", retry_after=1)
        if not models:
            return NotFound("the API key allows no model that is served", param="model")
        return NotFound(f"the model `{name[:200]}` does not exist; served: {_names(models)}", param="model")

    def context_length(self) -> int:
        """The longest of the served models, in tokens."""
        return max((card.context_length for card in self.backend.models().values()), default=0)

    def tokenizing(self, name: str) -> Model:
        """Tokenizer and chat template of a served model. Raises BadRequest for one whose engine takes text."""
        model = self.backend.model(name)
        if model is None:
            raise BadRequest(f"the model `{name}` has no tokenizer here: its engine takes text", param="model")
        return model


class Bytes(msgspec.Struct):
    """The `response` of an endpoint that answers with bytes."""

    media_type: ClassVar[str] = "application/octet-stream"


class Endpoint(ABC):
    """One method of one path, with its entry in /openapi.json."""

    method: ClassVar[str] = "GET"
    path: ClassVar[str]
    prefix: ClassVar[str] = ""  # what the paths begin with, when there are many; `path` then says how they continue
    suffix: ClassVar[str] = ""  # what such paths end with
    query: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # JSON Schema of its query parameters
    summary: ClassVar[str]
    request: ClassVar[type[msgspec.Struct] | None] = None
    response: ClassVar[type[msgspec.Struct] | None]  # None: a text
    form: ClassVar[Mapping[str, Any]] = {}  # JSON Schema of a body of form data, when it is none of JSON
    counted: ClassVar[bool] = False  # each request at and below the path counts at the limits of a key, as POST does
    streams: ClassVar[bool | str] = False  # True: server-sent events; else the type of lines, each a `response`
    errors: ClassVar[tuple[int, ...]] = (401,)
    error_form: ClassVar[ErrorForm] = OPENAI
    rules: ClassVar[Sequence[Mapping[str, Any]]] = ()  # of its requests, as JSON Schema
    values: ClassVar[Mapping[str, Any]] = {}  # by the name of a struct, what holds for it alone, as JSON Schema

    @abstractmethod
    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """Answer one request. Raises RequestError while nothing has been sent."""

    def named(self, context: RequestContext) -> str:
        """The id in the path of an endpoint with a prefix."""
        path = context.request.rel_url.path.removeprefix(self.prefix)
        return path.removesuffix("/").removesuffix(self.suffix) if self.suffix else path


R = TypeVar("R", bound=ModelRequest)
E = TypeVar("E", bound=EngineFields)


class BodyEndpoint(Endpoint, Generic[R]):
    """Reads a JSON body about one model. `model_type`: what the model must serve, a word of `ModelCard.types`."""

    method = "POST"
    errors: ClassVar[tuple[int, ...]] = (400, 401, 404, 408, 413, 415, 500, 503)
    request: ClassVar[type[ModelRequest]]
    model_type: ClassVar[str] = ""
    label: ClassVar[str] = ""  # `endpoint` in the metrics; empty: requests are not counted

    def __init__(self) -> None:
        self.request = extended(self.request)  # type: ignore[misc]  # by the features that are there now
        self._parser: Parser[R] = Parser(self.request)  # type: ignore[arg-type]  # a ClassVar cannot name R

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """Read, check and answer one request. Log lines meanwhile carry its id."""
        context.endpoint = self.label
        settings = frontend.settings
        timeline = context.timeline
        with bound(x_request_id=context.id), frontend.bodies.share() as share:
            self.check_type(context.request.headers)
            body = await read_body(context.request, frontend.body_limit, share, settings.body_min_rate)
            timeline.read = perf_counter()
            if (turn := frontend.turns.begin()) is not None:
                await turn
            timeline.turn = perf_counter()
            return await self.take(frontend, context, body)

    async def take(self, frontend: Frontend, context: RequestContext, body: bytes) -> web.StreamResponse:
        """Check and answer a request whose body is here. Raises RequestError while nothing has been sent."""
        if context.metrics.records is not None:
            context.metrics.records.asked(context, body)
        strict = frontend.settings.unknown_fields == "reject"
        ignored: list[str] | None = [] if frontend.settings.ignore_unsupported_fields else None
        if len(body) > LARGE:
            asked, unknown = await apart(self.read, body, strict, frontend.context_length(), ignored)
        else:
            asked, unknown = self.read(body, strict, ignored=ignored)
        context.metrics.unknown_fields += unknown
        name, card = self.pick(frontend, asked, context)
        if asked.model != name:
            asked = msgspec.structs.replace(asked, model=name)
        context.model = name
        if ignored is not None:
            model = frontend.backend.model(name)
            asked, more = left_out(asked, lambda request: self.unserved_in(request, card, model))
            if ignored := [*ignored, *more]:
                context.metrics.unsupported_fields.update(map(field_of, ignored))
                body = await apart(body_without, body, ignored) if len(body) > LARGE else body_without(body, ignored)
        return await self.answer(frontend, context, asked, card, body)

    def check_type(self, headers: Mapping[str, str]) -> None:
        """Look at what the headers say of the body. Raises UnsupportedMedia."""
        check_json_type(headers)

    def pick(self, frontend: Frontend, asked: R, context: RequestContext) -> tuple[str, ModelCard]:
        """The model asked for, by its own name, with its card. Raises BadRequest, NotFound or Overloaded."""
        return frontend.pick(asked.model, self.model_type, context)

    def read(
        self,
        body: bytes,
        reject_unknown: bool = False,
        context_length: int = 0,
        ignored: list[str] | None = None,
    ) -> tuple[R, int]:
        """The request of a body, and the number of unknown fields. Raises BadRequest.

        `context_length`: the longest of the models that are served. `ignored`: gets the paths of fields that are not
        served, and are left out then. Safe in a thread.
        """
        request, unknown = self._parser.parse(body, reject_unknown, context_length)
        if ignored is not None:
            request, found = left_out(request, self.unserved_in)
            ignored += found
        if (nvext := getattr(request, "nvext", None)) is not None:
            check_features(nvext)
        self.check(request)
        return request, unknown

    def unserved_in(self, request: R, card: ModelCard | None = None, model: Model | None = None) -> Unserved:
        """Fields that would change the answer and are not served. `card`, `model`: once they are known."""
        return iter(())

    def check(self, request: R) -> None:
        """Look at what the types of single fields cannot say. Raises BadRequest."""

    @abstractmethod
    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: R, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Answer a request that is in order, about a model that is served. Raises RequestError."""


class EngineEndpoint(BodyEndpoint[E]):
    """An endpoint whose answers engines make: each request becomes a job of the backend and a writer of its answer.

    `timed`: its answers always say how long they took (`Job.timed`).
    """

    timed: ClassVar[bool] = False
    errors: ClassVar[tuple[int, ...]] = (400, 401, 404, 408, 413, 415, 422, 500, 502, 503, 504)

    @abstractmethod
    async def lower(self, job: Job, served: Served) -> Lowered:
        """Check a job against its model and make its engine requests, one per choice. Raises RequestError."""

    def call_form(self, request: E, settings: FrontendSettings) -> CallForm:
        """How calls of tools reach the client."""
        return NO_CALLS

    @abstractmethod
    def writer(
        self, request: E, job: Job, context: RequestContext, meter: ModelMetrics, settings: FrontendSettings
    ) -> ResponseWriter:
        """What takes the answer and responds."""

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: E, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Let the backend work on the request and respond with what it makes."""
        meter = context.serving(asked.model, bool(self.streams) and bool(getattr(asked, "stream", False)))
        settings, records = frontend.settings, context.metrics.records
        timed = self.timed or settings.per_request_metrics or bool(asked.extra_fields) or records is not None
        facts = records.facts(context, asked) if records is not None else None
        timeline, identity = context.timeline, frontend.unused_id(context.id)
        notes, priority = context.notes, context.caller.priority
        calls = self.call_form(asked, settings)
        job = Job(
            identity, self, asked, body, priority, timed, notes=notes, facts=facts, timeline=timeline, calls=calls
        )
        writer = self.writer(asked, job, context, meter, _of_model(settings, card))
        writer.details.facts, writer.details.timeline = facts, timeline
        clock: asyncio.TimerHandle | None = None
        limit = settings.request_timeout
        if limit:
            clock = asyncio.get_running_loop().call_later(limit, context.abort, _too_long(limit))
        frontend.ids.add(job.id)
        try:
            await self._start(frontend.backend, context, job, writer, limit or None)
            return await writer.respond(context.request, context.headers)
        finally:
            if clock is not None:
                clock.cancel()
            context.release()
            frontend.ids.discard(job.id)

    @staticmethod
    async def _start(
        backend: Backend, context: RequestContext, job: Job, writer: ResponseWriter, limit: float | None
    ) -> None:
        context.responding(writer)
        context.timeline.checked = perf_counter()
        if limit is None:
            context.cancel = (await backend.start(job, writer)).cancel
        else:
            try:
                async with asyncio.timeout(limit):
                    context.cancel = (await backend.start(job, writer)).cancel
            except TimeoutError:
                raise _too_long(limit) from None
        if not writer.open and writer.error is not None:
            context.stop()  # ended by a clock or by shutdown while the backend was beginning


def _of_model(settings: FrontendSettings, card: ModelCard) -> FrontendSettings:
    """With what the card says instead of the frontend's own."""
    name = card.reasoning_field_name
    if name in (settings.reasoning_field_name, "") or name not in get_args(ReasoningField):
        return settings
    return msgspec.structs.replace(settings, reasoning_field_name=name)


def _trim() -> None:
    asyncio.get_running_loop().run_in_executor(None, partial(trim_memory, collect=False))


def _names(models: Iterable[str]) -> str:
    return ", ".join(sorted(models)[:8])


def _too_long(limit: float) -> TimedOut:
    return TimedOut(f"the request took longer than {limit:g} s, the limit of this server")
