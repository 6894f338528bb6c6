"""LoRA adapters that clients load and unload while models are served."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dynamod.extension.feature import Feature

from .settings import LoraSettings

if TYPE_CHECKING:
    from dynamod.http.settings import FrontendSettings
    from dynamod.ingress.parts import ProcessorContext


def _endpoints() -> Sequence[object]:
    from .endpoints import LoadAdapter, UnloadAdapter

    return LoadAdapter(), UnloadAdapter()


def _part(settings: "FrontendSettings") -> LoraSettings:
    return msgspec.convert(settings, LoraSettings, from_attributes=True)


def _processor(context: "ProcessorContext") -> object:
    from .ingress import AdapterLoader

    return AdapterLoader(context)


def _worker() -> type:
    from .worker import FollowedAdapters

    return FollowedAdapters


FEATURE = Feature(
    "lora",
    "LoRA adapters loaded and unloaded by clients: /v1/load_lora_adapter and /v1/unload_lora_adapter",
    endpoints=_endpoints,
    part=_part,
    settings={"frontend": LoraSettings},
    processor=_processor,
    worker=_worker,
)
