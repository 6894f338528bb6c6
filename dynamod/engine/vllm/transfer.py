"""KV blocks of prompts between vLLM's own engines, by its NixlConnector: the engine that answers reads them (pull)."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from dynamod.message.discovery import DisaggregationMode
from dynamod.message.worker import Generate

from ..own_transfer import OwnTransfer, Ready

if TYPE_CHECKING:
    from .engine import Vllm

CONNECTOR = "NixlConnector"
LEASE = 60
"""Seconds that blocks are kept for their reader, which renews this while it waits, if it reaches us: then they go to
other requests, and a read of them is not refused."""
READ = 0.75
"""Share of a lease in which blocks must have come, from their request's arrival: it has not ended then."""
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
ASKED: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    **dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")),
}
"""What a prefill engine is asked with; its answer has the same names, and goes to the decode engine as it is."""

_FAILURES: tuple[tuple[str, Literal["failed", "unreachable"]], ...] = (
    ("num_failed_transfers", "failed"),
    ("num_failed_handshakes", "unreachable"),
)


def with_connector(values: Mapping[str, Any], mode: DisaggregationMode, *, cpu: bool = False) -> dict[str, Any]:
    """`values` with the connector for a mode. What is given of `kv_transfer_config` counts more.

    What could not be read is computed by the engine that answers: vLLM's own default ends the request.
    """
    given = values.get("kv_transfer_config") or {}
    if mode not in _ROLES or not isinstance(given, Mapping):
        return dict(values)
    own: dict[str, Any] = {"kv_connector": CONNECTOR, "kv_role": _ROLES[mode], "kv_load_failure_policy": "recompute"}
    if cpu:
        own["kv_buffer_device"] = "cpu"
    extra = {"kv_lease_duration": LEASE, **given.get("kv_connector_extra_config", {})}
    return {**values, "kv_transfer_config": {**own, **given, "kv_connector_extra_config": extra}}


class VllmTransfer(OwnTransfer):
    """vLLM keeps the blocks until they have been read, or until its lease ends, which the reading engine renews.

    `lease`: its seconds, alike in both engines. `patience`: seconds until blocks must have come.
    """

    def __init__(self, engine: "Vllm", layout: str, lease: float) -> None:
        super().__init__(f"{layout}/{lease:g}")
        self._engine, self.patience = engine, READ * lease

    async def prefill(self, request: Generate, ready: Ready) -> None:
        """Compute a prompt. Ends by a cancel: only vLLM knows whether the prompt has been read."""
        ready(await self._engine.computed(request, ASKED))
        await asyncio.Event().wait()

    def record(self, found: Mapping[str, Any]) -> None:
        """Statistics of the connector, since the last ones."""
        self.bytes += sum(found.get("bytes_transferred", ()))
        self.transfers += len(found.get("bytes_transferred", ()))
        self.seconds += sum(found.get("transfer_duration", ()))
        self.expired += sum(found.get("num_kv_expired_reqs", ()))
        for name, kind in _FAILURES:
            if count := sum(found.get(name, ())):
                self.failed[kind] += count
