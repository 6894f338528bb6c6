"""With the real stack of the ingress's tests behind HTTP."""

from tests.ingress.real.conftest import cache, pace, real, words

__all__ = ["cache", "pace", "real", "words"]
