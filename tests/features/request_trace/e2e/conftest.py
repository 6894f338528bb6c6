"""Commands run on the machine of the end-to-end tests."""

from tests.e2e.conftest import machine, played, servers

__all__ = ["machine", "played", "servers"]
