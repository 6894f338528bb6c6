"""KV blocks of prompts between SGLang's own engines: both are told a host, a port and a room at once (rendezvous)."""

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dynamod.message.discovery import DisaggregationMode
from dynamod.message.errors import UserError
from dynamod.message.worker import Generate

from ..own_transfer import OwnTransfer, Ready

if TYPE_CHECKING:
    from .engine import SgLang

BACKEND = "nixl"
ROOMS = 62
"""Bits of a room's number, which SGLang keeps as a signed one."""


def with_mode(
    values: Mapping[str, Any], mode: DisaggregationMode, host: str, port: int, *, cpu: bool = False
) -> dict[str, Any]:
    """`values` with what a mode needs, where nothing is given. `host`, `port`: where prefill engines are met.

    Raises UserError for another mode among them.
    """
    own_mode = "null" if mode == "aggregated" else mode
    if values.get("disaggregation_mode", own_mode) != own_mode:
        problem = f"{values['disaggregation_mode']}, but the worker is {mode}"
        raise UserError(
            f"sglang argument disaggregation_mode: {problem}", "set it for the worker: --disaggregation-mode"
        )
    if mode == "aggregated":
        return dict(values)
    own: dict[str, Any] = {"disaggregation_mode": mode, "disaggregation_transfer_backend": BACKEND, "host": host}
    if mode == "prefill":
        own["disaggregation_bootstrap_port"] = port
    elif cpu:  # its own is a pool that CUDA registers
        own["disaggregation_decode_retraction_backup"] = "none"
    return {**own, **values}


class SgLangTransfer(OwnTransfer):
    """The engine that computes the prompt sends the blocks, and the first token, to the one that answers."""

    shape = "rendezvous"

    def __init__(self, engine: "SgLang", layout: str, host: str, port: int) -> None:
        super().__init__(layout)
        self._engine, self._host, self._port = engine, host, port

    async def prefill(self, request: Generate, ready: Ready) -> None:
        """Compute a prompt, and send it."""
        room = secrets.randbits(ROOMS)
        params = {"bootstrap_host": self._host, "bootstrap_port": self._port, "bootstrap_room": room}
        ready(params)
        await self._engine.computed(request, params)
