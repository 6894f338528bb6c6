"""LoRA adapters in vLLM: its arguments for them, its requests, and which are loaded.

vLLM gets an adapter's digest as its name. So its prefix cache and its KV events tell adapters apart by what they
compute, also when another adapter takes the place of one under the same name.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dynamod.message.discovery import Adapter
from dynamod.message.errors import UserError
from dynamod.message.worker import Generate

from ..adapter.output import one_line
from ..adapters import gone
from ..lora import CONFIG, LATE, check_folder, digested

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values that `max_lora_rank` may have."""
TOGETHER = 8
"""Adapters of one batch, at most, where `max_loras` is not given: each takes memory."""

CPU_EXTENSION = "dynamod.engine.vllm.cpu_lora:Adapters"
"""What mends answers without adapters where the engine computes on a CPU."""


def with_lora(values: Mapping[str, Any], adapters: Iterable[Adapter], *, cpu: bool = False) -> dict[str, Any]:
    """VLLM's arguments for these adapters, where they are not given. Raises UserError."""
    given = list(adapters)
    if cpu and (given or values.get("enable_lora")):
        if values.get("worker_extension_cls"):
            hint = "leave one of them out"
            raise UserError("vllm argument worker_extension_cls: on a CPU adapters need one of ours", hint)
        values = {**values, "worker_extension_cls": CPU_EXTENSION.replace(":", ".")}
    if not given:
        return dict(values)
    if values.get("enable_lora") is False:
        raise UserError("vllm argument enable_lora: false together with lora", "leave one of them out")
    rank = max(_rank(one) for one in given)
    if rank > RANKS[-1]:
        raise UserError(f"lora: an adapter has the rank {rank}, and vLLM computes {RANKS[-1]} at most")
    own = {"max_lora_rank": next(one for one in RANKS if one >= rank), "max_loras": min(len(given), TOGETHER)}
    return {**own, **values, "enable_lora": True}


def _rank(adapter: Adapter) -> int:
    try:
        return int(json.loads((Path(adapter.path) / CONFIG).read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"lora {adapter.name}: {adapter.path} does not say its rank ({one_line(error)})") from None


class VllmAdapters:
    """The adapters of `llm`, vLLM's AsyncLLM: an `AdapterStore`. `make`: vLLM's LoRARequest.

    `listed()`: the adapters on the engine's card now.
    """

    def __init__(self, llm: Any, make: Any, listed: Callable[[], Iterable[Adapter]] = tuple) -> None:
        self._llm, self._make, self._listed = llm, make, listed
        self._requests: dict[str, Any] = {}  # by digest
        self._number = 0

    async def begin(self, adapters: Iterable[Adapter]) -> tuple[Adapter, ...]:
        """Load the adapters of the start; returns them with digests. Raises UserError."""
        found = [digested(one) for one in adapters]
        for one in found:
            await self.load(one)
        return tuple(found)

    async def load(self, adapter: Adapter) -> None:
        """Raises UserError."""
        if adapter.digest in self:
            return
        self._number += 1
        request = self._make(lora_name=adapter.digest, lora_int_id=self._number, lora_path=adapter.path)
        try:
            loaded = await self._llm.add_lora(request)
        except Exception as error:
            raise UserError(f"vLLM cannot load the adapter {adapter.name}: {one_line(error)}") from None
        if loaded is False:
            raise UserError(f"vLLM has not loaded the adapter {adapter.name}", "the worker's log has more")
        self._requests[adapter.digest] = request

    def __contains__(self, digest: object) -> bool:
        return digest in self._requests

    async def take(self, adapter: Adapter) -> None:
        """Check the folder of an adapter, and have vLLM load it. Raises UserError."""
        if adapter.digest not in self:
            check_folder((adapter,), None)
        await self.load(adapter)

    async def leave(self, adapter: Adapter) -> None:
        """Drop an adapter in LATE seconds: requests that are on their way still get it."""
        asyncio.get_running_loop().call_later(LATE, self._drop_unlisted, adapter.digest)

    def _drop_unlisted(self, digest: str) -> None:
        if all(one.digest != digest for one in self._listed()):
            self.drop(digest)

    def drop(self, digest: str) -> None:
        """No new answer gets it; vLLM frees it when it needs the room."""
        self._requests.pop(digest, None)

    def of(self, request: Generate) -> dict[str, Any]:
        """Keywords of `AsyncLLM.generate` for the adapter that a request asks for. Raises NotFound."""
        if request.adapter is None:
            return {}
        found = self._requests.get(request.adapter.digest)
        if found is None:
            raise gone(request.adapter.name)
        return {"lora_request": found}
