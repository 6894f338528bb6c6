"""Ollama's API is tested with the real stack of the ingress's tests."""

from tests.ingress.real.conftest import cache, house, pace, serve, words

__all__ = ["cache", "house", "pace", "serve", "words"]
