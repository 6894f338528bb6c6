"""The registry of backends: a line each, the fastest first, imported only when asked for."""

import importlib
from collections.abc import Iterator

from dynamod.transport.tls import PeerTls

from .base import Backend

BACKENDS = {
    "shm": "dynamod.features.prefill.transfer.shm:Shm",
    "nixl": "dynamod.features.prefill.transfer.nixl:Nixl",
    "tcp": "dynamod.features.prefill.transfer.tcp:Tcp",
    "tls": "dynamod.features.prefill.transfer.tcp:Tls",
}
CLEAR = ("nixl", "tcp")
"""Backends that send between nodes in the clear."""


def backends(tls: PeerTls | None = None) -> Iterator[tuple[str, Backend]]:
    """Name and backend of each. With `tls` nothing is sent between nodes in the clear; without it, nothing in TLS."""
    for name, target in BACKENDS.items():
        module, _, attribute = target.partition(":")
        if name == "tls":
            if tls is not None:
                yield name, getattr(importlib.import_module(module), attribute)(tls)
        elif tls is None or name not in CLEAR:
            backend: type[Backend] = getattr(importlib.import_module(module), attribute)
            yield name, backend()
