"""Features of the HTTP API are tested with the server and the backend of the ingress's tests."""

from ..ingress.conftest import backend, connect, serve, server, until

__all__ = ["backend", "connect", "serve", "server", "until"]
