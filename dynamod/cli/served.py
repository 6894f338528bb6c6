"""Which models can be asked for, and whether a graph's own are among them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from dynamod.discovery.base import Watcher
from dynamod.discovery.keys import CARDS, INSTANCES
from dynamod.discovery.records import decoded
from dynamod.message.discovery import Instance, ModelCard
from dynamod.runtime.components.served import SERVED, UNSERVED, ServedModel, UnservedModel

KINDS: dict[str, type[Any]] = {
    SERVED: ServedModel,
    UNSERVED: UnservedModel,
    CARDS: ModelCard,
    INSTANCES: Instance,
}
"""What stands under a prefix of the registry."""


class Models:
    """Kept by watching the registry. `added` is called with each model that becomes served, once per model and type."""

    def __init__(self, added: Callable[[ServedModel], None], changed: Callable[[], None]) -> None:
        self._added, self._changed = added, changed
        self._found: dict[str, dict[str, Any]] = {prefix: {} for prefix in KINDS}

    def watchers(self) -> dict[str, Watcher]:
        """What to watch, by prefix."""
        return {prefix: partial(self._take, prefix) for prefix in KINDS}

    def served(self, graph: str) -> bool:
        """Whether every model that the graph's own workers publish can be asked for."""
        own = self._own(graph)
        return bool(own) and own <= self._served()

    def refused(self, graph: str) -> dict[str, str]:
        """The graph's own models that no ingress process can serve, and why one of them cannot."""
        missing = {name for _, name in self._own(graph) - self._served()}
        found = {one.model: one.why for one in self._found[UNSERVED].values()}
        return {name: found[name] for name in missing & found.keys()}

    def _own(self, graph: str) -> set[tuple[str, str]]:
        instances = self._found[INSTANCES]
        return {
            (kind, card.name)
            for place, card in self._found[CARDS].items()
            for kind in card.types
            if place in instances and instances[place].process.startswith(f"{graph}/")
        }

    def _served(self) -> set[tuple[str, str]]:
        return {(served.type, served.model) for served in self._found[SERVED].values()}

    def _take(self, prefix: str, key: str, value: bytes | None) -> None:
        found, place = self._found[prefix], key.removeprefix(prefix)
        new = decoded(key, value, KINDS[prefix])
        if new is None:
            found.pop(place, None)
        else:
            served = self._served()
            found[place] = new
            if prefix == SERVED and (new.type, new.model) not in served:
                self._added(new)
        self._changed()
