"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them."""

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from dynamod.http.context import RequestContext
from dynamod.http.errors import Forbidden
from dynamod.ingress.api.endpoint import BodyEndpoint, Frontend
from dynamod.message.discovery import Adapter, ModelCard
from dynamod.message.errors import BadRequest, NotFound
from dynamod.message.openai import ModelRequest

from .ingress import AdapterLoader
from .settings import LoraSettings

SETTING = "allow_runtime_lora_updating"
_Text = Annotated[str, Meta(min_length=1)]


class LoadAdapterRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`model`: the model below the adapter, where several are served. `lora_path`: below the frontend's `lora_dir`."""

    lora_name: _Text
    lora_path: _Text
    load_inplace: bool = False


class UnloadAdapterRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`lora_int_id`: accepted, without effect."""

    lora_name: _Text
    lora_int_id: int | None = None


R = TypeVar("R", bound=LoadAdapterRequest | UnloadAdapterRequest)


class _AdapterEndpoint(BodyEndpoint[R], Generic[R]):
    response = None
    errors = (400, 401, 403, 404, 408, 413, 415, 500, 503, 504)

    async def serve(self, frontend: Frontend, context: RequestContext) -> web.StreamResponse:
        """Raises Forbidden where the frontend's setting does not allow it."""
        if not self.settings(frontend).allow_runtime_lora_updating:
            text = f"{self.path} is off; the frontend's setting {SETTING} (--{SETTING.replace('_', '-')}) turns it on"
            raise Forbidden(text)
        return await super().serve(frontend, context)

    @staticmethod
    def settings(frontend: Frontend) -> LoraSettings:
        """Which adapters clients may load."""
        found: LoraSettings = frontend.parts["lora"]
        return found

    @staticmethod
    def loader(frontend: Frontend) -> AdapterLoader:
        """What the feature keeps in the processor."""
        found: AdapterLoader = frontend.backend.parts["lora"]
        return found


class LoadAdapter(_AdapterEndpoint[LoadAdapterRequest]):
    """Loads an adapter on all workers of a model."""

    path = "/v1/load_lora_adapter"
    summary = "Load a LoRA adapter; it is a model of its own then"
    request = LoadAdapterRequest
    values: ClassVar[Mapping[str, Any]] = {
        "LoadAdapterRequest": {"examples": [{"lora_name": "my-adapter", "lora_path": "my-adapter"}]}
    }

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: LoadAdapterRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """Says so when requests can ask for it. Raises BadRequest, NotFound, Overloaded, TimedOut."""
        if card.adapter is not None:
            raise BadRequest(f"`model` is {card.name!r}, which is an adapter itself", param="model")
        path = below(self.settings(frontend).lora_dir, asked.lora_path)
        try:
            adapter = msgspec.convert({"name": asked.lora_name, "path": path}, Adapter)
        except msgspec.ValidationError as error:
            raise BadRequest(f"`lora_name` and `lora_path`: {error}", param="lora_name") from None
        await self.loader(frontend).load(card.base, adapter, inplace=asked.load_inplace)
        return web.Response(text=f"Success: LoRA adapter '{asked.lora_name}' added successfully.")


def below(folder: str, path: str) -> str:
    """The path of an adapter at the workers, which lies below `folder`; relative ones start there. Raises BadRequest.

    Symbolic links of this machine are resolved for the check only: the folder may be elsewhere on a worker's machine.
    """
    given = f"`lora_path` is {path[:200]!r}"
    if not folder:
        text = f"{given}, and no adapter may be loaded: the setting `lora_dir` of the frontend (--lora-dir) is empty"
        raise BadRequest(f"{text}; set it to the folder of the adapters", param="lora_path", code="no_lora_dir")
    root = os.path.abspath(folder)
    found = os.path.normpath(os.path.join(root, path))
    if "\0" in path or not (_inside(found, root) and _inside(os.path.realpath(found), os.path.realpath(root))):
        text = f"{given}; it must be below {folder}, the setting `lora_dir` of the frontend"
        raise BadRequest(text, param="lora_path", code="not_in_lora_dir")
    return found


def _inside(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))


class UnloadAdapter(_AdapterEndpoint[UnloadAdapterRequest]):
    """Has all workers forget an adapter."""

    path = "/v1/unload_lora_adapter"
    summary = "Unload a LoRA adapter; answers that have begun are finished"
    request = UnloadAdapterRequest
    values: ClassVar[Mapping[str, Any]] = {"UnloadAdapterRequest": {"examples": [{"lora_name": "my-adapter"}]}}

    def read(self, *arguments: Any, **more: Any) -> tuple[UnloadAdapterRequest, int]:
        """The adapter itself is the model that it is about."""
        request, unknown = super().read(*arguments, **more)
        return msgspec.structs.replace(request, model=request.model or request.lora_name), unknown

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: UnloadAdapterRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """Says so when no request can ask for the adapter any more. Raises NotFound, TimedOut."""
        found = frontend.models(context).get(asked.lora_name)
        if found is None or found.adapter is None or found.base != card.base:
            text = f"the lora adapter {asked.lora_name!r} is not loaded"
            raise NotFound(text, param="lora_name", code="adapter_not_found")
        await self.loader(frontend).unload(found)
        return web.Response(text=f"Success: LoRA adapter '{asked.lora_name}' removed successfully.")
