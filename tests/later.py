"""Libraries that take long to import, for tests that ask for them. Not a test."""

from importlib import import_module
from typing import Any


class Later:
    """A module that is imported when something of it is first used.

    Every process of a run imports every file of tests, and would import for a second what the tests of one file use.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("pytestmark", "hypothesis"):
            raise AttributeError(name)  # pytest and its plugins look at all that a file has
        return getattr(import_module(self._name), name)
