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


def make(registry: Registry) -> ComponentContext:
    process: Any = SimpleNamespace(
        registry=registry,
        transport=SimpleNamespace(tcp=None),
        server=SimpleNamespace(path="socket"),
        subject="",
        plan=SimpleNamespace(name="graph/Worker.0"),
    )
    service: Any = SimpleNamespace(name="Worker", spec={})
    return ComponentContext(process, service)


def test_the_card_comes_first_and_goes_last() -> None:
    registry, found = Registry(), list[tuple[int, int]]()
    memory: Any = registry.memory
    view = View(memory)
    view.on_change(lambda: found.append((len(view.all_instances()), len(view.serving("m")))))
    context = make(registry)
    context.publish("generate", ModelCard("m", types=("chat",)))
    assert found == [(0, 0), (1, 1)]
    context.publish("generate", ModelCard("m", types=("chat", "completions")))
    context.publish("load_metrics")
    context.withdraw("load_metrics")
    del found[:]
    context.withdraw()
    assert found == [(0, 0), (0, 0)]


def test_a_model_is_coming_until_it_is_published_or_given_up() -> None:
    registry, found = Registry(), list[str | None]()
    memory: Any = registry.memory
    view = View(memory)
    view.on_coming(lambda _place, card: found.append(card and card.name))
    context = make(registry)
    context.expect("generate", ModelCard("m"))
    context.expect("generate", ModelCard("m", context_length=7))
    assert (found, view.models()) == (["m", "m"], {})
    context.publish("generate", ModelCard("m"))
    assert found == ["m", "m", None]
    assert list(view.models()) == ["m"]
    context.withdraw()
    context.expect("generate", ModelCard("m"))
    context.withdraw()
    assert found == ["m", "m", None, "m", None]
