"""Commands run on the machine of the end-to-end tests, on nodes with real servers between them."""

from tests.e2e.conftest import machine, played

__all__ = ["machine", "played"]
