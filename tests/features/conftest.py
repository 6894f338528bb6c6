"""Features are tested with what the tests of the core have: server and backend, requests in flight."""

from ..graph.conftest import clean
from ..ingress.conftest import backend, connect, serve, server, threaded, until
from ..migration.conftest import words

__all__ = ["backend", "clean", "connect", "serve", "server", "threaded", "until", "words"]
