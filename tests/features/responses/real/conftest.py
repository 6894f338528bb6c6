"""Responses are tested with the real stack of the ingress's tests, and with its OpenAI client."""

from tests.ingress.real.conftest import cache, client, house, pace, serve, words

__all__ = ["cache", "client", "house", "pace", "serve", "words"]
