"""The registry of backends: a line each, the best one first, imported only when asked for."""

import importlib
from collections.abc import Iterator

from dynamod.transport.base import Spawn
from dynamod.transport.tls import PeerTls

from .base import Backend

BACKENDS = {
    "shm": "dynamod.features.prefill.transfer.shm:Shm",
    "tls": "dynamod.features.prefill.transfer.tcp:Tls",
    "nixl": "dynamod.features.prefill.transfer.nixl:Nixl",
    "tcp": "dynamod.features.prefill.transfer.tcp:Tcp",
}
CLEAR = ("nixl", "tcp")
"""Backends that send between nodes in the clear."""


def backends(tls: PeerTls | None = None, spawn: Spawn | None = None) -> Iterator[tuple[str, Backend]]:
    """Name and backend of each. With `tls` nothing is sent between nodes in the clear, unless it accepts that.

    Without `tls` nothing is sent in TLS. `spawn`: to listen for both.
    """
    for name, target in BACKENDS.items():
        module, _, attribute = target.partition(":")
        if name == "tls":
            if tls is not None:
                yield name, getattr(importlib.import_module(module), attribute)(tls, spawn)
        elif tls is None or tls.accept or name not in CLEAR:
            backend: type[Backend] = getattr(importlib.import_module(module), attribute)
            yield name, backend()
