"""Processors with workers, and a frontend, as tests of the ingress have them; the machine of commands."""

from ...e2e.conftest import machine, played
from ...ingress.conftest import until
from ...ingress.real.conftest import cache, house, pace, serve, words

__all__ = ["cache", "house", "machine", "pace", "played", "serve", "until", "words"]
