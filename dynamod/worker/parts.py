"""Parts of a worker: what features do in it, when it starts, while it runs, and with messages of their own."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import msgspec

from dynamod.discovery.base import Watcher
from dynamod.engine.base import Engine, EngineOptions, Spawn
from dynamod.extension.installed import disabled, enabled, installed
from dynamod.message.discovery import Capabilities, DisaggregationMode, ModelCard, OfPart
from dynamod.message.errors import UserError
from dynamod.transport.base import Reply
from dynamod.transport.signing import Signing
from dynamod.transport.tls import PeerTls

Submit = Callable[[Any, Reply], None]
"""Gives a request to the engine. Raises RequestError."""

_OF_PARTS = tuple(field.name for field in msgspec.structs.fields(Capabilities) if field.type == OfPart)

ANSWER = 30.0
"""Seconds in which a part answers a question, in addition to the question's own `timeout`."""


class Role(msgspec.Struct, frozen=True):
    """What a worker is for. `epoch`: how often that has changed."""

    role: DisaggregationMode
    epoch: int = 0


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon asks a worker by a `name`, and a part answers (`WorkerPart.questions`). Fields are arguments."""

    name: ClassVar[str]

    @classmethod
    def of(cls, arguments: dict[str, Any]) -> Self:
        """From JSON-like arguments. Raises UserError."""
        try:
            return msgspec.convert(arguments, cls)
        except msgspec.ValidationError as error:
            raise UserError(f"{cls.name}: {error}") from None

    @property
    def patience(self) -> float:
        """Seconds in which the answer comes."""
        return getattr(self, "timeout", 0.0) + ANSWER


class PartQuestion(msgspec.Struct, frozen=True):
    """Message to a worker: a question for one of its parts. The reply is what the part answers."""

    question: Question


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a part is given of its worker.

    `publish()` publishes the engine's card again. `follow(prefix, watcher)` watches keys of the registry and returns
    when the watcher knows the keys that are there; a worker without a registry has no keys.

    `spawn` starts a task of the worker. `begin(request, reply, submit)`: the request is load of the worker from now on;
    what `submit` raises ends its stream. `take(request, reply, submit)`: call `submit` now; of a request that is to be
    `alone`, when it is, and while another request is alone, refuse it. `options()`: of the engine, with the worker's
    role. `host()`: the address at which other nodes reach the worker.

    `role()`: the worker's now. `become(role, timeout)`: another role; model and KV cache stay. A worker that leaves its
    pool leaves the registry first, and open requests get `timeout` seconds to finish; their senders then continue at
    another worker. Raises OSError and UserError, with the worker in its old role.

    `settings`: the worker's section with the keys of features, None for their defaults. `name`, `index`: of the process
    among those of its component. `signing`: of what the process says to other nodes. `tls`: of connections between
    processes of nodes that go neither over NATS nor over etcd; None: in the clear.
    """

    engine: Engine[Any]
    publish: Callable[[], None]
    follow: Callable[[str, Watcher], Awaitable[None]]
    spawn: Spawn
    begin: Callable[[Any, Reply, Submit], None]
    take: Callable[[Any, Reply, Submit], None]
    options: Callable[[], EngineOptions]
    host: Callable[[], str]
    role: Callable[[], Role]
    become: Callable[[DisaggregationMode, float], Awaitable[Role]]
    settings: Any = None
    name: str = ""
    index: int = 0
    signing: Signing = field(default_factory=Signing)
    tls: PeerTls | None = None


class WorkerPart:
    """What a feature keeps in each worker; `Feature.worker` gives a class that extends this one.

    `messages`: methods of the part by the type of request that they answer: `async def method(self, request, reply)`.
    Each call is a task of the worker. The reply has been accepted, and what the method raises ends its stream. `work`:
    the same for requests that are work for the engine. These methods are no coroutines, and use `WorkerContext.take` or
    `WorkerContext.begin`.

    `questions`: methods by the type of `Question` that they answer: `def method(self, question)`. The method returns
    what the daemon gets, a future of that, or an expected UserError.

    `capabilities`: the `OfPart` fields of an engine's capabilities that the part makes use of.
    """

    messages: ClassVar[Mapping[type, Callable[[Any, Any, Reply], Awaitable[None]]]] = {}
    work: ClassVar[Mapping[type, Callable[[Any, Any, Reply], None]]] = {}
    questions: ClassVar[Mapping[type[Question], Callable[[Any, Any], Any]]] = {}
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

    def drain(self) -> None:
        """The worker takes nothing new, and ends when its open requests have ended."""

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
    lost = {name: False for name in _OF_PARTS if name not in used and getattr(capabilities, name)}
    return msgspec.structs.replace(capabilities, **lost) if lost else capabilities


def why_refused(request: object) -> str:
    """Which feature that is off would answer the request, and why the feature is off; "" where none would."""
    for name, why in disabled().items():
        worker = installed()[name].worker
        if worker is not None and type(request) in {**worker().messages, **worker().work}:
            return f"requests of this kind belong to the feature '{name}', which is off: {why}"
    return ""
