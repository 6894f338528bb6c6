"""Calls whose parameters come one by one: their arguments are written as a JSON object, one parameter at a time."""

from ..calls import Calls
from ..reader import Ended
from ..typed import quoted, typed


class Parameters:
    """The arguments of one call; `schema` is that of its tool.

    A second value for a name is left out: JSON objects have a name once.
    """

    def __init__(self, calls: Calls, name: str, given: str = "") -> None:
        self._calls = calls
        self.schema = calls.tools.get(name, {})
        self._seen: set[str] = set()
        calls.start(name, given)

    def add(self, name: str, text: str) -> None:
        """A parameter as the model wrote it, typed by the tool's schema."""
        if name not in self._seen:
            self.add_json(name, typed(text, self.schema, name))

    def add_json(self, name: str, value: str) -> None:
        """A parameter whose value is JSON text."""
        if name not in self._seen:
            self._calls.arguments(f"{', ' if self._seen else '{'}{quoted(name)}: {value}")
            self._seen.add(name)

    def done(self) -> None:
        """The call is complete."""
        self._calls.arguments("}" if self._seen else "{}")
        self._calls.done()

    def unclosed(self) -> Ended:
        """The text is over between two parameters: the call is complete if the model has ended it itself."""
        if self._calls.reason == "stop":
            self.done()
        return Ended()


def trimmed(text: str) -> str:
    """A value without the line break that formats write after the opening and in front of the closing marker."""
    return text.removeprefix("\n").removesuffix("\n")
