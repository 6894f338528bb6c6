"""A mapping of a resource, read key by key: a key that is not read has no effect here."""

from collections.abc import Iterator
from typing import Any, TypeVar, cast

from dynamod.graph.document import Document, Path
from dynamod.message.errors import UserError
from dynamod.message.hints import kind

T = TypeVar("T")


class Section:
    """The mapping at a path of a document. Raises UserError where something else stands there."""

    def __init__(self, document: Document, path: Path, value: object) -> None:
        self.document, self.path = document, path
        if value is not None and not isinstance(value, dict):
            raise document.error(path, f"expected a mapping, got {kind(value)}")
        self._left = dict(cast("dict[str, Any]", value or {}))
        self._opened: list[Section] = []

    def take(self, key: str, of: type[T]) -> T | None:
        """The value of a key; None where the key is absent. Raises UserError for another type."""
        value = self.any(key)
        if value is None or (isinstance(value, of) and not isinstance(value, bool)):
            return value
        raise self.error(key, f"expected {_NAMES[of]}, got {kind(value)}")

    def mapping(self, *keys: str) -> "Section":
        """The mapping below these keys; an empty one where a key is absent."""
        here = self
        for key in keys:
            found = next((one for one in here._opened if one.path[-1] == key), None)
            if found is None:
                found = Section(self.document, (*here.path, key), here._left.pop(key, None))
                here._opened.append(found)
            here = found
        return here

    def mappings(self, key: str) -> list["Section"]:
        """The mappings of a list; empty where the key is absent."""
        values = self.take(key, list) or []
        found = [Section(self.document, (*self.path, key, str(place)), one) for place, one in enumerate(values)]
        self._opened += found
        return found

    def unread(self) -> tuple[str, ...]:
        """The keys that were not read."""
        return tuple(self._left)

    def any(self, key: str) -> object:
        """The value of a key, of any type; None where the key is absent."""
        return self._left.pop(key, None)

    def members(self) -> dict[str, "Section"]:
        """All values, which are mappings, by their keys."""
        return {key: self.mapping(key) for key in self.unread()}

    def drop(self, *keys: str) -> None:
        """These keys need no word: nothing is lost without them."""
        for key in keys:
            self._left.pop(key, None)

    def left(self) -> Iterator[Path]:
        """The paths of the keys that were not read."""
        yield from ((*self.path, key) for key in self._left)
        for one in self._opened:
            yield from one.left()

    def error(self, key: str, problem: str, hint: str = "") -> UserError:
        """The error of a key."""
        return self.document.error((*self.path, key) if key else self.path, problem, hint)


_NAMES: dict[type, str] = {str: "text", int: "a number", list: "a list"}
