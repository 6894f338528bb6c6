"""Commands run on the machine of the end-to-end tests."""

from tests.browser import chromium
from tests.e2e.conftest import machine, played, servers

__all__ = ["chromium", "machine", "played", "servers"]
