"""A server on a free port, as in the tests of the ingress."""

from tests.ingress.conftest import backend, serve

__all__ = ["backend", "serve"]
