"""Tracing is tested on frontends over real engines, too."""

from ...ingress.real.conftest import cache, house, pace, serve, words

__all__ = ["cache", "house", "pace", "serve", "words"]
