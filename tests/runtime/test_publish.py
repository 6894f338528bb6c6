"""An instance that others see can be asked: the card of its model is there from the first moment to the last."""

import random
from types import SimpleNamespace
from typing import Any

from dynamod.discovery.memory import MemoryRegistry
from dynamod.discovery.view import View
from dynamod.message.discovery import ModelCard
from dynamod.runtime.context import ComponentContext


class Registry:
    """Of a process with a lease; its keys are known to all watchers at once."""

    node = "here"

    def __init__(self) -> None:
        self.memory = MemoryRegistry(random.Random(0))
        self.lease = self.memory.grant()

    def put(self, key: str, value: bytes) -> None:
        self.memory.put(key, value, self.lease)

    def delete(self, key: str) -> None:
        self.memory.delete(key, self.lease)


def test_the_card_comes_first_and_goes_last() -> None:
    registry, found = Registry(), list[tuple[int, int]]()
    memory: Any = registry.memory
    view = View(memory)
    view.on_change(lambda: found.append((len(view.all_instances()), len(view.serving("m")))))
    process: Any = SimpleNamespace(
        registry=registry,
        transport=SimpleNamespace(tcp=None),
        server=SimpleNamespace(path="socket"),
        subject="",
        plan=SimpleNamespace(name="graph/Worker.0"),
    )
    service: Any = SimpleNamespace(name="Worker", spec={})
    context = ComponentContext(process, service)
    context.publish("generate", ModelCard("m", types=("chat",)))
    assert found == [(0, 0), (1, 1)]
    context.publish("generate", ModelCard("m", types=("chat", "completions")))
    context.publish("load_metrics")
    context.withdraw("load_metrics")
    del found[:]
    context.withdraw()
    assert found == [(0, 0), (0, 0)]
