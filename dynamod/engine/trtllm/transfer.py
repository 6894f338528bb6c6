"""KV blocks of prompts between TensorRT-LLM engines: the one that answers reads them (pull). Not run on hardware."""

import asyncio
from typing import TYPE_CHECKING, Any

from dynamod.message.errors import EngineFailed
from dynamod.message.worker import Generate

from ..own_transfer import OwnTransfer, Ready

if TYPE_CHECKING:
    from .engine import TrtLlm

CONTEXT, GENERATION = "context_only", "generation_only"
"""What TensorRT-LLM's `DisaggregatedParams` call the two parts of a request."""
_PLAIN = (
    *("first_gen_tokens", "ctx_request_id", "opaque_state", "draft_tokens", "disagg_request_id", "ctx_dp_rank"),
    "ctx_info_endpoint",
)
"""Their fields that another process can read."""


class TrtLlmTransfer(OwnTransfer):
    """TensorRT-LLM keeps the blocks until they have been read, or for `kv_transfer_timeout_ms`."""

    def __init__(self, engine: "TrtLlm", layout: str) -> None:
        super().__init__(layout)
        self._engine = engine

    async def prefill(self, request: Generate, ready: Ready) -> None:
        """Compute a prompt, with the first token of its answer. Ends by a cancel: readers are not reported."""
        if request.sampling.logprobs is not None:
            raise EngineFailed("the log probability of a first token is not handed over")
        ready(await self._engine.computed(request))
        await asyncio.Event().wait()


def plain(found: Any) -> dict[str, Any]:
    """What TensorRT-LLM says to the engine that answers."""
    values = {name: getattr(found, name, None) for name in _PLAIN}
    return {name: value for name, value in values.items() if value is not None}
