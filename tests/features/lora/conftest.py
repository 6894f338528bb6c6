"""Processors with workers, as tests of the ingress have them; workers with one engine, as those of engines do."""

from ...engine.conftest import words
from ...engine.llamacpp.conftest import closed, system
from ...ingress.real.conftest import cache, house, pace

__all__ = ["cache", "closed", "house", "pace", "system", "words"]
