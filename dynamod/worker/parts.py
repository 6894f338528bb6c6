"""Parts of a worker: what features do in it, when it starts, while it runs, and with messages of their own."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from dynamod.discovery.base import Watcher
from dynamod.engine.base import Engine, EngineOptions, Spawn
from dynamod.extension.installed import disabled, enabled, installed
from dynamod.message.discovery import Capabilities, DisaggregationMode, ModelCard
from dynamod.transport.base import Reply

Submit = Callable[[Any, Reply], None]
"""Gives a request to the engine. Raises RequestError."""

OF_PARTS = ("handoff", "needs_prefill", "stored_blocks", "role_switch")
"""Capabilities of engines that a worker has only with a part that makes use of them."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a part is given of its worker.

    `publish()` publishes the engine's card again. `follow(prefix, watcher)` watches keys of the registry and returns
    when the watcher knows the keys that are there; a worker without a registry has no keys.

    `spawn` starts a task of the worker. `begin(request, reply, submit)`: the request is load of the worker from now on;
    what `submit` raises ends its stream. `take(request, reply, submit)`: call `submit` now; of a request that is to be
    `alone`, when it is, and while another request is alone, refuse it. `options()`: of the engine, with the worker's
    role. `host()`: the address at which other nodes reach the worker.

    `settings`: the worker's section with the keys of features, None for their defaults. `name`, `index`: of the process
    among those of its component.
    """

    engine: Engine[Any]
    publish: Callable[[], None]
    follow: Callable[[str, Watcher], Awaitable[None]]
    spawn: Spawn
    begin: Callable[[Any, Reply, Submit], None]
    take: Callable[[Any, Reply, Submit], None]
    options: Callable[[], EngineOptions]
    host: Callable[[], str]
    settings: Any = None
    name: str = ""
    index: int = 0


class WorkerPart:
    """What a feature keeps in each worker; `Feature.worker` gives a class that extends this one.

    `messages`: methods of the part by the type of request that they answer: `async def method(self, request, reply)`.
    Each call is a task of the worker. The reply has been accepted, and what the method raises ends its stream. `work`:
    the same for requests that are work for the engine. These methods are no coroutines, and use `WorkerContext.take` or
    `WorkerContext.begin`.

    `capabilities`: of OF_PARTS, the ones that the part makes use of.
    """

    messages: ClassVar[Mapping[type, Callable[[Any, Any, Reply], Awaitable[None]]]] = {}
    work: ClassVar[Mapping[type, Callable[[Any, Any, Reply], None]]] = {}
    capabilities: ClassVar[Collection[str]] = ()

    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    def section(self) -> Any | None:
        """What the worker's card says in the feature's section: a struct, None for nothing (`ModelCard.section`)."""
        return None

    async def enter(self, role: DisaggregationMode) -> None:
        """Awaited before the worker has a role: when its engine is loaded, and when the role changes.

        Raises UserError when the engine cannot have the role, and OSError, after which the worker keeps its role.
        """

    def leave(self, role: DisaggregationMode) -> None:
        """The worker has this role no more."""

    def submitting(self, request: Any, submit: Submit) -> Submit:
        """What gives a request that the engine serves to the engine: `submit`, or a function instead."""
        return submit

    def statistics(self) -> msgspec.Struct | None:
        """Numbers of the hand-off between workers, which become `WorkerStatistics.handoff`."""
        return None

    def close(self) -> None:
        """The worker ends; its engine is still there."""

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


def usable(capabilities: Capabilities, parts: Mapping[str, WorkerPart]) -> Capabilities:
    """The capabilities of an engine that its worker has with these parts."""
    used = {name for part in parts.values() for name in part.capabilities}
    lost = {name: False for name in OF_PARTS if name not in used and getattr(capabilities, name)}
    return msgspec.structs.replace(capabilities, **lost) if lost else capabilities


def why_refused(request: object) -> str:
    """Which feature that is off would answer the request, and why the feature is off; "" where none would."""
    for name, why in disabled().items():
        worker = installed()[name].worker
        if worker is not None and type(request) in {**worker().messages, **worker().work}:
            return f"requests of this kind belong to the feature '{name}', which is off: {why}"
    return ""
