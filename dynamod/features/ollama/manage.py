"""POST /api/pull and DELETE /api/delete, where the operator allows them; routes of Ollama that are not served."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from aiohttp import HttpVersion11, web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.http.errors import Forbidden
from dynamod.ingress.api.endpoint import Endpoint, Frontend
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, DynamodError, EngineFailed, NotFound, RequestError, UserError
from dynamod.preprocess.download import Progress
from dynamod.preprocess.fetch import fetch
from dynamod.preprocess.reference import Reference, reference

from .errors import InUse, error_value
from .messages import NamedModel, OllamaDeleteRequest, OllamaPullRequest
from .named import LATEST, OllamaEndpoint, OllamaList, plain, settings_of
from .writer import NDJSON

_encode = msgspec.json.Encoder().encode


class OllamaStatus(msgspec.Struct, omit_defaults=True):
    """A line of a download. Bytes are counted over all files."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0


class OllamaEmpty(msgspec.Struct):
    """Nothing to say."""


class Managing(OllamaEndpoint[Any]):
    """A route that changes which models are on this machine."""

    errors = (*OllamaEndpoint.errors, 403, 409, 502)

    def pick(self, frontend: Frontend, asked: NamedModel, context: RequestContext) -> tuple[str, ModelCard]:
        """A model that need not be served. Raises Forbidden, or BadRequest for a name that is none of the hub's."""
        if not settings_of(frontend).ollama_manage_models:
            why = "the operator does not let clients change the models of this machine (setting `ollama_manage_models`)"
            raise Forbidden(f"{self.path} is not allowed here: {why}")
        if context.caller.sees is not None and context.caller.client is not None:
            raise Forbidden(f"{self.path} needs an admin's key", code="not_allowed")
        name = plain(asked.model, {}).removesuffix(LATEST)
        if reference(name) is None:
            why = "write org/name or org/name:Q4_K_M, as Hugging Face has it"
            raise BadRequest(f"`model` is {asked.model[:200]!r}; {why}", param="model")
        return name, ModelCard(name)


class Pull(Managing):
    """A download."""

    path = "/api/pull"
    summary = "Download a model of Hugging Face to this machine, as Ollama has it"
    request = OllamaPullRequest
    values: ClassVar[Mapping[str, Any]] = {
        "OllamaPullRequest": {"examples": [{"model": "HuggingFaceTB/SmolLM2-135M-Instruct"}]}
    }
    response = OllamaStatus
    streams = NDJSON

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: OllamaPullRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """Lines of progress, or one line at the end. A client that leaves ends the download."""
        if asked.stream is False:
            try:
                await fetch(card.name)
            except DynamodError as error:
                raise _failed(error) from None
            return json_response(OllamaStatus("success"))
        response = web.StreamResponse(headers={**context.headers, "Content-Type": NDJSON})
        if context.request.version < HttpVersion11:
            response.force_close()
        await response.prepare(context.request)
        await response.write(_line(OllamaStatus("pulling manifest")))

        async def tell(seen: Progress) -> None:
            line = OllamaStatus(f"pulling {card.name}", card.name, seen.total or 0, seen.done)
            await response.write(_line(line))

        try:
            await fetch(card.name, progress=tell)
            await response.write(_line(OllamaStatus("success")))
        except DynamodError as error:
            await response.write(_encode(error_value(_failed(error))) + b"\n")
        await response.write_eof()
        return response


class Delete(Managing):
    """A model less."""

    method = "DELETE"
    path = "/api/delete"
    summary = "Delete a model from the cache of this machine, as Ollama has it"
    request = OllamaDeleteRequest
    values: ClassVar[Mapping[str, Any]] = {
        "OllamaDeleteRequest": {"examples": [{"model": "HuggingFaceTB/SmolLM2-135M-Instruct"}]}
    }
    response = OllamaEmpty

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: OllamaDeleteRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """Delete its files. Raises NotFound, or InUse for a model that is served."""
        from dynamod.preprocess.cache import folder, remove

        wanted = reference(card.name)
        assert wanted is not None
        place = folder(wanted.repository)
        for served in frontend.backend.models().values():
            if _uses(served, wanted, place):
                raise InUse(f"the model `{served.name}` is served from these files", param="model")
        try:
            if not await asyncio.to_thread(remove, wanted):
                raise NotFound(f"the cache of this machine has no model `{card.name}`", param="model")
        except UserError as error:
            raise NotFound(error.line(), param="model") from None
        except OSError as error:
            raise Forbidden(f"the files cannot be deleted: {error.strerror}") from None
        return json_response(OllamaEmpty())


def _uses(card: ModelCard, wanted: Reference, place: Path) -> bool:
    if not card.path or not Path(card.path).is_relative_to(place):
        return False
    return not wanted.quantization or wanted.quantization.lower() in card.path.lower()


def _failed(error: DynamodError) -> RequestError:
    if isinstance(error, UserError):
        return NotFound(error.line(), param="model")
    return EngineFailed(str(error))


def _line(value: OllamaStatus) -> bytes:
    return _encode(value) + b"\n"


class Refused(OllamaList):
    """A route of Ollama that is not served."""

    method = "POST"
    response: ClassVar[type[msgspec.Struct]] = OllamaEmpty
    errors = (400, 401)
    why: ClassVar[str]

    async def list(self, frontend: Frontend, context: RequestContext) -> web.Response:
        """Say why. Raises BadRequest."""
        raise BadRequest(f"{self.path} is not served: {self.why}", code="unsupported_route")


class Create(Refused):
    """POST /api/create."""

    path = "/api/create"
    summary = "Not served: a model is a key of `models:` in a config file"
    why = "a model with its settings is a key of `models:` in a config file"


class Copy(Refused):
    """POST /api/copy."""

    path = "/api/copy"
    summary = "Not served: further names of a model are its `aliases`"
    why = "further names of a model are its `aliases` in a config file"


class Push(Refused):
    """POST /api/push."""

    path = "/api/push"
    summary = "Not served: models are uploaded with the tools of Hugging Face"
    why = "models are uploaded with the tools of Hugging Face"


REFUSED: Sequence[type[Endpoint]] = (Create, Copy, Push)
