"""Parts of a processor: what features keep in it, in addition to models and requests."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from functools import partial
from typing import Any

from dynamod.discovery.link import LinkRegistry
from dynamod.discovery.view import View
from dynamod.extension.installed import enabled
from dynamod.message.discovery import ModelCard
from dynamod.migration.stages import overriding
from dynamod.transport.base import Spawn, Transport

from .base import Job, ResponseSink, Run

Begin = Callable[[Job, ResponseSink], Awaitable[Run]]
"""Begins a request. Raises RequestError."""


@dataclass(frozen=True, slots=True)
class ProcessorContext:
    """What a part is given of its processor.

    `cards()`: models that a request may name, by name. `reserved`: names of models that may come. `spawn` starts a task
    of the processor. `watch(watcher)`: see `View.on_change`, as long as the processor runs. `held(model)`: within the
    block a model has a worker, if a worker can be started; raises Overloaded. `revise()`: to be called when
    `starting_card` or `can_start` of the part gives another answer. `link`: the connection to the daemon, None in a
    processor without a daemon; `component`: the processor's name there.

    `keep(card)`: from now on requests may name the model although no worker serves it; `forget(name)` ends that.
    `check(job)` prepares a request whose card a worker has published, and raises RequestError for a wrong one.
    `queue_timeout`: seconds that a request waits for a worker, None for any time.
    """

    view: View
    transport: Transport
    cards: Callable[[], Mapping[str, ModelCard]]
    spawn: Spawn
    watch: Callable[[Callable[[], None]], None]
    held: Callable[[str], AbstractAsyncContextManager[None]]
    revise: Callable[[], None]
    keep: Callable[[ModelCard], None]
    forget: Callable[[str], None]
    check: Callable[[Job], Awaitable[None]]
    queue_timeout: float | None = None
    reserved: Collection[str] = ()
    link: LinkRegistry | None = None
    component: str = ""


class ProcessorPart:
    """What a feature keeps in each processor; endpoints find it in `Backend.parts` by the feature's name."""

    def __init__(self, context: ProcessorContext) -> None:
        self.context = context

    async def prepare(self) -> None:
        """Awaited before the first request comes."""

    def starting_card(self, card: ModelCard) -> ModelCard:
        """The card that a new worker would publish. `card`: as the settings of the worker say it."""
        return card

    # Models without workers.

    def starts(self, card: ModelCard) -> bool:
        """Whether no worker serves the model, or the model below an adapter, and one starts for requests that wait."""
        return False

    def can_start(self, name: str) -> bool:
        """False: no worker of the model can be started now, so requests must not wait for one."""
        return True

    def places(self, names: Collection[str]) -> Collection[str]:
        """Where the part has workers of these models started: dyn://..."""
        return ()

    def aliases(self) -> Mapping[str, str]:
        """Other names for requests, with the names of the models that they mean."""
        return {}

    def states(self) -> Mapping[str, Any]:
        """By model, objects with the `state` of its worker, for `seconds`, and the `error` of the last start."""
        return {}

    def wanted(self, name: str) -> AbstractContextManager[None]:
        """Entered while a request that has begun waits for a worker of a model that `starts`."""
        return nullcontext()

    def held(self, model: str) -> AbstractAsyncContextManager[None]:
        """Within the block the model has a worker, if the part can have one started. Raises Overloaded."""
        return nullcontext()

    async def load_model(self, model: str, keep_alive: float | str | None = None) -> bool:
        """Have a worker of the model started, and wait for it, as a request would. False: it is not for this part.

        `keep_alive`: how long the model stays afterwards, as in `EngineFields`. Raises BadRequest or Overloaded.
        """
        return False

    async def unload_model(self, model: str) -> bool:
        """Have the worker of the model ended after its running requests. False: it is not for this part.

        Raises RequestError while requests wait for the model.
        """
        return False

    def start(self, job: Job, sink: ResponseSink, begin: Begin) -> Awaitable[Run]:
        """Begin a request; `begin` is the next part, and the last one prepares and sends it. Raises RequestError."""
        return begin(job, sink)


class ProcessorParts(dict[str, ProcessorPart]):
    """The parts of a processor, by the names of their features. The methods answer for all of them.

    A component of a feature may add a part by another name.
    """

    def __init__(self, parts: Mapping[str, ProcessorPart] = {}) -> None:
        super().__init__()
        self.fill(parts)

    def fill(self, parts: Mapping[str, ProcessorPart]) -> None:
        """Have these parts, too."""
        self.update(parts)
        self._starting = overriding(self.values(), ProcessorPart, "starts")
        self._naming = overriding(self.values(), ProcessorPart, "aliases")
        self._beginning = overriding(self.values(), ProcessorPart, "start")

    def starting_card(self, card: ModelCard) -> ModelCard:
        """As `ProcessorPart.starting_card`, one after the other."""
        for part in self.values():
            card = part.starting_card(card)
        return card

    def starts(self, card: ModelCard) -> bool:
        """Whether one of them starts a worker."""
        for part in self._starting:  # noqa: SIM110 - no generator: once per choice
            if part.starts(card):
                return True
        return False

    def can_start(self, name: str) -> bool:
        """Whether none of them says that no worker can be started."""
        return all(part.can_start(name) for part in self.values())

    def places(self, names: Collection[str]) -> set[str]:
        """Those of all of them."""
        return {place for part in self.values() for place in part.places(names)}

    def named(self, cards: Mapping[str, ModelCard]) -> Mapping[str, ModelCard]:
        """The cards, also by the aliases of their models."""
        aliases = {alias: name for part in self._naming for alias, name in part.aliases().items() if name in cards}
        return {**cards, **{alias: cards[name] for alias, name in aliases.items()}} if aliases else cards

    @contextmanager
    def wanted(self, name: str) -> Generator[None]:
        """As `ProcessorPart.wanted`."""
        with ExitStack() as stack:
            for part in self.values():
                stack.enter_context(part.wanted(name))
            yield

    @asynccontextmanager
    async def held(self, model: str) -> AsyncGenerator[None]:
        """As `ProcessorPart.held`, one after the other."""
        async with AsyncExitStack() as stack:
            for part in self.values():
                await stack.enter_async_context(part.held(model))
            yield

    def around(self, begin: Begin) -> Begin:
        """`begin` with `ProcessorPart.start` of all of them around it, one around the other."""
        for part in self._beginning:
            begin = partial(part.start, begin=begin)
        return begin


def make_parts(context: ProcessorContext) -> dict[str, ProcessorPart]:
    """A part for each feature that is on, by the feature's name."""
    return {one.name: one.processor(context) for one in enabled() if one.processor is not None}
