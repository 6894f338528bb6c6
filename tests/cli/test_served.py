"""Which models can be asked for, and which of a graph's own never will be."""

from typing import Any

import msgspec

from dynamod.cli.served import Models
from dynamod.discovery.keys import CARDS, INSTANCES
from dynamod.message.discovery import Instance, ModelCard
from dynamod.runtime.components.served import SERVED, UNSERVED, ServedModel, UnservedModel


class Registry:
    """What watches of `Models` are told."""

    def __init__(self) -> None:
        self.models = Models(lambda _model: None, lambda: None)
        self._watchers = self.models.watchers()

    def put(self, prefix: str, place: str, value: Any) -> None:
        self._watchers[prefix](f"{prefix}{place}", msgspec.json.encode(value) if value is not None else None)


def test_a_model_of_the_graph_that_no_ingress_can_serve() -> None:
    registry = Registry()
    registry.put(INSTANCES, "dynamo/w/generate/1", Instance("dynamo", "w", "generate", 1, {}, process="mine/Worker.0"))
    registry.put(INSTANCES, "dynamo/w/generate/2", Instance("dynamo", "w", "generate", 2, {}, process="other/Worker.0"))
    assert (registry.models.served("mine"), registry.models.refused("mine")) == (False, {}), "nothing is known yet"
    registry.put(CARDS, "dynamo/w/generate/1", ModelCard(name="m", types=("chat",)))
    registry.put(CARDS, "dynamo/w/generate/2", ModelCard(name="n", types=("chat",)))
    assert registry.models.refused("mine") == {}, "it is being loaded"
    for model in ("m", "n"):
        registry.put(UNSERVED, f"{model}/9", UnservedModel(model, f"no {model}"))
    assert (registry.models.served("mine"), registry.models.refused("mine")) == (False, {"m": "no m"})
    registry.put(SERVED, "chat/m/8", ServedModel("chat", "m", "dynamo", "Processor", "chat"))
    assert (registry.models.served("mine"), registry.models.refused("mine")) == (True, {}), "another ingress can"
    registry.put(SERVED, "chat/m/8", None)
    registry.put(UNSERVED, "m/9", None)
    assert registry.models.refused("mine") == {}
