"""Parts of a worker: what features do in it, when it starts, while it runs, and with messages of their own."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from dynamod.discovery.base import Watcher
from dynamod.engine.base import Engine
from dynamod.extension.installed import disabled, enabled, installed
from dynamod.message.discovery import ModelCard
from dynamod.transport.base import Reply


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a part is given of its worker.

    `publish()` publishes the engine's card again. `follow(prefix, watcher)` watches keys of the registry and returns
    when the watcher knows the keys that are there; a worker without a registry has no keys. `settings`: the worker's
    section of the config file with the keys that features add; None where a worker has no section.
    """

    engine: Engine[Any]
    publish: Callable[[], None]
    follow: Callable[[str, Watcher], Awaitable[None]]
    settings: Any = None


class WorkerPart:
    """What a feature keeps in each worker; `Feature.worker` gives a class that extends this one.

    `messages`: methods of the part by the type of request that they answer: `async def method(self, request, reply)`.
    Each call is a task of the worker. The reply has been accepted, and what the method raises ends its stream.
    """

    messages: ClassVar[Mapping[type, Callable[[Any, Any, Reply], Awaitable[None]]]] = {}

    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    def section(self) -> Any | None:
        """What the worker's card says in the feature's section: a struct, None for nothing (`ModelCard.section`)."""
        return None

    async def prepare(self) -> None:
        """Awaited when the engine is loaded, before the worker is announced."""

    async def run(self) -> None:
        """A task of the worker from its announcement on."""


def make_parts(context: WorkerContext) -> dict[str, WorkerPart]:
    """A part for each feature that is on, by the feature's name."""
    return {one.name: one.worker()(context) for one in enabled() if one.worker is not None}


def with_sections(card: ModelCard, parts: Mapping[str, WorkerPart]) -> ModelCard:
    """The card with the sections of these parts."""
    sections = {name: msgspec.to_builtins(one) for name, part in parts.items() if (one := part.section()) is not None}
    return msgspec.structs.replace(card, sections=card.sections | sections) if sections else card


def why_refused(request: object) -> str:
    """Which feature that is off would answer the request, and why the feature is off; "" where none would."""
    for name, why in disabled().items():
        worker = installed()[name].worker
        if worker is not None and type(request) in worker().messages:
            return f"requests of this kind belong to the feature '{name}', which is off: {why}"
    return ""
