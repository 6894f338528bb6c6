"""Workers with one engine each, as in the tests of engines."""

from tests.engine.conftest import words

__all__ = ["words"]
