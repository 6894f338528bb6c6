"""Imports aiohttp without the certificates of the system, which aiohttp reads twice then: 0.05 to 0.1 s of CPU time.

To be imported before aiohttp, by a process that seldom connects to others by TLS, as an ingress. The certificates are
read with its first such connection.
"""

import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

_READS = ("load_default_certs", "set_default_verify_paths")


class LateContext(ssl.SSLContext):
    """A context whose certificates are read when they are needed. `reads`: what reads them."""

    reads: tuple[Callable[[], None], ...]

    def _read(self) -> None:
        for read in self.reads:
            read()
        self.reads = ()

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Of an event loop."""
        self._read()
        return super().wrap_bio(*args, **kwargs)

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """Of a thread."""
        self._read()
        return super().wrap_socket(*args, **kwargs)

    def cert_store_stats(self) -> dict[str, int]:
        """How many there are."""
        self._read()
        return super().cert_store_stats()

    def get_ca_certs(self, binary_form: bool = False) -> Any:
        """All of them."""
        self._read()
        return super().get_ca_certs(binary_form)


def _import() -> None:
    """Import aiohttp; the contexts that it makes meanwhile remember what they were told to read."""
    told: dict[ssl.SSLContext, list[Callable[[], None]]] = {}

    def later(read: Callable[..., None]) -> Callable[..., None]:
        return lambda context, *args: told.setdefault(context, []).append(partial(read, context, *args))

    own = {name: vars(ssl.SSLContext)[name] for name in _READS if name in vars(ssl.SSLContext)}
    try:
        for name in _READS:
            setattr(ssl.SSLContext, name, later(getattr(ssl.SSLContext, name)))
        import aiohttp.connector  # noqa: F401
    finally:
        for name in _READS:
            if name in own:
                setattr(ssl.SSLContext, name, own[name])
            else:
                delattr(ssl.SSLContext, name)  # that of the class below is found again
    for context, reads in told.items():
        context.__class__ = LateContext
        context.reads = tuple(reads)  # type: ignore[attr-defined]


_import()
