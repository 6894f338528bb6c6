"""What the daemon knows of models: which can be asked for, and whether a graph's own are among them."""

from collections.abc import Callable

import msgspec

from dynamod.daemon.runner import GraphRunner
from dynamod.discovery.base import Watcher
from dynamod.discovery.keys import CARDS, INSTANCES
from dynamod.graph.graph import PROCESSOR, WORKER
from dynamod.message.discovery import Instance, ModelCard
from dynamod.runtime.components.served import SERVED, ServedModel

Watch = Callable[[str, Watcher], None]


class Models:
    """Kept by watching the registry. `added` is told of each model that becomes served, once per model and type."""

    def __init__(self, watch: Watch, added: Callable[[ServedModel], None], changed: Callable[[], None]) -> None:
        self._added, self._changed = added, changed
        self._served: dict[str, ServedModel] = {}
        self._cards: dict[str, ModelCard] = {}
        self._instances: dict[str, Instance] = {}
        watch(SERVED, self._served_changed)
        watch(CARDS, self._card_changed)
        watch(INSTANCES, self._instance_changed)

    def ready(self, runner: GraphRunner) -> bool:
        """Whether every model that the graph's own workers publish can be asked for in its own ingress."""
        if not {PROCESSOR, WORKER} <= {spec.component_kind for spec in runner.services()}:
            return True
        own = {
            (kind, card.name)
            for place, card in self._cards.items()
            for kind in card.types
            if (instance := self._instances.get(place)) is not None and instance.process.startswith(f"{runner.name}/")
        }
        return bool(own) and own <= {(served.type, served.model) for served in self._served.values()}

    def _served_changed(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._served.pop(key, None)
        else:
            served = msgspec.json.decode(value, type=ServedModel)
            known = any((s.type, s.model) == (served.type, served.model) for s in self._served.values())
            self._served[key] = served
            if not known:
                self._added(served)
        self._changed()

    def _card_changed(self, key: str, value: bytes | None) -> None:
        place = key.removeprefix(CARDS)
        if value is None:
            self._cards.pop(place, None)
        else:
            self._cards[place] = msgspec.json.decode(value, type=ModelCard)
        self._changed()

    def _instance_changed(self, key: str, value: bytes | None) -> None:
        place = key.removeprefix(INSTANCES)
        if value is None:
            self._instances.pop(place, None)
        else:
            self._instances[place] = msgspec.json.decode(value, type=Instance)
        self._changed()
