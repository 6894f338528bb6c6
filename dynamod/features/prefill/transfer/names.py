"""The registry of backends: a line each, the fastest first, imported only when asked for."""

import importlib
from collections.abc import Iterator

from .base import Backend

BACKENDS = {
    "shm": "dynamod.features.prefill.transfer.shm:Shm",
    "nixl": "dynamod.features.prefill.transfer.nixl:Nixl",
    "tcp": "dynamod.features.prefill.transfer.tcp:Tcp",
}


def backends() -> Iterator[tuple[str, Backend]]:
    """Name and backend of each."""
    for name, target in BACKENDS.items():
        module, _, attribute = target.partition(":")
        backend: type[Backend] = getattr(importlib.import_module(module), attribute)
        yield name, backend()
