"""Requests without a prompt: a model is loaded before it is needed, or unloaded."""

from typing import Literal

from dynamod.ingress.api.endpoint import Frontend

from .errors import InUse


async def load_or_unload(frontend: Frontend, model: str, keep_alive: float | str | None) -> Literal["load", "unload"]:
    """What was done, as `done_reason` says it. `keep_alive` 0 unloads. Raises RequestError."""
    parts = frontend.backend.parts.values()
    if not _is_zero(keep_alive):
        for part in parts:
            if await part.load_model(model, keep_alive):
                break
        return "load"  # a model that no part loads has a worker, since it is served
    for part in parts:
        if await part.unload_model(model):
            return "unload"
    why = f"the model {model!r} is not loaded on demand, so a request cannot unload it"
    raise InUse(why, param="keep_alive", code="not_on_demand")


def _is_zero(keep_alive: float | str | None) -> bool:
    if isinstance(keep_alive, str):
        return keep_alive.strip().rstrip("hms") in ("0", "0.0")
    return keep_alive == 0 and keep_alive is not None
