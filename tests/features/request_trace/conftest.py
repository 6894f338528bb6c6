"""Processors with workers, and a frontend, as tests of the ingress have them."""

from ...ingress.conftest import until
from ...ingress.real.conftest import cache, house, pace, serve, words

__all__ = ["cache", "house", "pace", "serve", "until", "words"]
