"""The keeper: the actor that owns the decisions about models on demand and carries them out.

Requests claim a model and wait here until they may be sent to it. Workers are started and ended by the daemon, at whose
registry the keeper sees when they serve.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from dynamod.actor import Actor, Reason, Total, control, handle
from dynamod.message.errors import DynamodError, Overloaded, UserError
from dynamod.message.pools import Pool

from .core import OnDemand
from .reports import ModelReports
from .settings import Budget, ModelSettings
from .state import Action, Admit, Drain, Refuse, Start

log = logging.getLogger("dynamod.frontend")

LOOK = 0.25
"""Seconds between looks at time, and at workers that start."""
AGAIN = 1.0
"""Seconds until the daemon is asked again when a worker could not be ended."""
LISTED = 2.0
"""Seconds within which a worker that has ended leaves the registry."""


class Workers(Protocol):
    """The worker processes of components, as the daemon manages them. Both raise UserError, DynamodError, OSError."""

    async def scale(self, component: str, replicas: int) -> None:
        """Run so many; returns when the processes that end have finished."""

    async def pool(self, component: str) -> Pool:
        """The processes of the component."""
        ...


@dataclass(slots=True, eq=False)
class Claim:
    """Ask for a turn with a model; the reply comes when the request may be sent. Raises Overloaded.

    `left`: the request does not wait any more.
    """

    model: str
    request: str
    keep_alive: float | None = None
    left: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """The request of a claim is over, or does not wait any more."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model. Raises Overloaded when that fails; the reply comes when it is ready."""

    model: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload a model after its running requests. The reply: whether that can be, True, or requests wait for it."""

    model: str


class OnDemandStatistics(msgspec.Struct, frozen=True):
    """Models that are ready and that load; requests that wait for one and that run; what was begun, and what failed."""

    ready: Annotated[int, Meta(description="Models that are ready.")]
    loading: Annotated[int, Meta(description="Models that are being loaded.")]
    waiting: Annotated[int, Meta(description="Requests that wait for a model.")]
    running: Annotated[int, Meta(description="Requests that run on models of the keeper.")]
    loads: Annotated[Total, Meta(description="Loads that began.")]
    unloads: Annotated[Total, Meta(description="Unloads that began.")]
    failed_loads: Annotated[Total, Meta(description="Loads that failed.")]


class ModelKeeper(Actor):
    """`serving(model)`: whether requests for it can be placed now. `memory(model)`: bytes that it takes, as far as is
    known. `models`: by name. `first()`: whether no keeper of the same models is there that came before; while one is,
    which has requests left, it decides.
    """

    mailbox_capacity = 4096

    def __init__(
        self,
        models: Mapping[str, ModelSettings],
        budget: Budget,
        workers: Workers,
        serving: Callable[[str], bool],
        memory: Callable[[str], int] = lambda _model: 0,
        first: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings, self._budget, self._workers, self._serving = models, budget, workers, serving
        self._memory, self._first = memory, first
        self._claims: dict[str, asyncio.Future[None]] = {}
        self._loads: dict[str, list[asyncio.Future[None]]] = {}
        self._look_due = False
        self._totals = Counter[str]()

    async def started(self) -> None:
        """Begin to look at time; decide from now on, if it is our turn."""
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time
        self.core = OnDemand(self._settings, self._budget, self.context.random, self._now())
        self.published = ModelReports(self.core, self._now)
        self._locks = {name: asyncio.Lock() for name in self._settings}
        self.core.decides = False
        if self._first():
            await self._take_over()
        self.context.task(self._watch(), "watch models")

    async def _take_over(self) -> None:
        """Find what runs already, and load what is configured so."""
        self.core.decides = True
        for name, one in self._settings.items():
            pool = await _asking(self._workers.pool(one.component))
            if isinstance(pool, Pool) and pool.wanted:
                self._do(self.core.found(self._now(), name))
            elif isinstance(pool, Pool) and pool.replicas:
                self._do(self.core.leaves(self._now(), name))
        self._do(self.core.preload(self._now()))

    async def stopping(self, reason: Reason) -> None:
        """Refuse the requests that wait."""
        for future in [*self._claims.values(), *(one for many in self._loads.values() for one in many)]:
            if not future.done():
                future.set_exception(Overloaded("the processor is ending", retry_after=1.0))
                future.exception()  # the request may have ended: else asyncio logs the error

    # Messages.

    @handle
    async def claim(self, message: Claim) -> "asyncio.Future[None] | None":
        """Admit the request, now or later."""
        if message.left:
            return None
        future = self._claims[message.request] = self._loop.create_future()
        self._do(self.core.came(self._now(), message.model, message.request, message.keep_alive))
        return future

    @control
    async def release(self, message: Release) -> None:
        """Forget the request."""
        request = message.claim.request
        self._claims.pop(request, None)
        self._do(self.core.ended(self._now(), request))

    @handle
    async def load(self, message: Load) -> "asyncio.Future[None] | None":
        """Begin to load."""
        model = self.core.models[message.model]
        if model.state == "ready":
            self._do(self.core.load(self._now(), message.model))
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        self._loads.setdefault(message.model, []).append(future)
        self._do(self.core.load(self._now(), message.model))
        return future

    @handle
    async def unload(self, message: Unload) -> "bool | asyncio.Future[bool]":
        """Begin to unload."""
        if not self.core.decides:
            refused: asyncio.Future[bool] = self._loop.create_future()
            why = "another process of the frontend is ending, and decides till then"
            refused.set_exception(Overloaded(why, retry_after=1.0))
            return refused
        actions = self.core.unload(self._now(), message.model)
        self._do(actions or [])
        return actions is not None

    # Published for reading.

    def statistics(self) -> OnDemandStatistics:
        """A snapshot."""
        rows = self.published.all()
        return OnDemandStatistics(
            sum(one.state == "ready" for one in rows),
            sum(one.state == "loading" for one in rows),
            sum(one.waiting for one in rows),
            sum(one.running for one in rows),
            *(self._totals[name] for name in ("loads", "unloads", "failed")),
        )

    def look_soon(self) -> None:
        """Workers or models have changed: look once for all that changes in this turn of the loop."""
        if not self._look_due and hasattr(self, "core"):
            self._look_due = True
            self._loop.call_soon(self._look)

    # Carrying out.

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Admit(request):
                    _settle(self._claims.pop(request, None), None)
                case Refuse(request, why, retry_after):
                    _settle(self._claims.pop(request, None), _failed(why, retry_after))
                case Start(name):
                    log.info("loading model %s", name)
                    self._totals["loads"] += 1
                    self.context.task(self._start(name), f"load {name}")
                case Drain(name):
                    log.info("unloading model %s", name)
                    self._totals["unloads"] += 1
                    model, now = self.core.models[name], self._now()
                    why = model.last_error if now < model.retry_at else "it was unloaded"
                    self._loaded(name, _failed(why, model.retry_at - now))
                    self.context.task(self._drain(name), f"unload {name}")

    def _look(self) -> None:
        """Compare the states of models with the workers that serve."""
        self._look_due = False
        for name, model in self.core.models.items():
            serves = self._serving(name)
            if serves and (model.state == "loading" or (model.state == "unloaded" and not self.core.decides)):
                self._do(self.core.ready(self._now(), name))
                took = f" in {model.took:.1f} s" if model.took is not None else ""
                log.info("model %s is ready%s", name, took)
                self._loaded(name, None)
            elif not serves and model.state == "ready":
                self._do(self.core.lost(self._now(), name))
            if (memory := self._memory(name)) and (serves or not model.memory):
                self.core.measured(name, memory)

    def _loaded(self, name: str, error: Exception | None) -> None:
        for future in self._loads.pop(name, ()):
            _settle(future, error)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            if not self.core.decides and self._first():
                await self._take_over()
            self._look()
            await asyncio.gather(*(self._check(name) for name in self.core.models if self._unsure(name)))
            self._do(self.core.tick(self._now()))

    def _unsure(self, name: str) -> bool:
        """Whether what is known of its worker may be wrong."""
        state = self.core.models[name].state
        return self.core.decides and (state == "loading" or (state == "unloaded" and self._serving(name)))

    async def _check(self, name: str) -> None:
        """Whether the worker of a model that loads is given up, or an operator has started or ended it."""
        model, begun = self.core.models[name], self.core.models[name].since
        if self._locks[name].locked():
            return
        pool = await _asking(self._workers.pool(self._settings[name].component))
        if not isinstance(pool, Pool) or model.since != begun:
            return
        if model.state == "unloaded":
            if pool.wanted:
                self._do(self.core.found(self._now(), name))
        elif model.state != "loading":
            return
        elif not pool.replicas:
            self._do(self.core.unloaded(self._now(), name))
        elif all(one.state == "Fatal" for one in pool.replicas):
            self._give_up(name, pool.replicas[0].last_error)

    def _give_up(self, name: str, why: str) -> None:
        log.error("model %s could not be loaded: %s", name, why)
        self._totals["failed"] += 1
        self._do(self.core.failed(self._now(), name, why))

    async def _start(self, name: str) -> None:
        async with self._locks[name]:
            if self.core.models[name].state != "loading":
                return
            error = await _asking(self._workers.scale(self._settings[name].component, 1))
        if isinstance(error, Exception) and self.core.models[name].state == "loading":
            self._give_up(name, error.line() if isinstance(error, UserError) else str(error))

    async def _drain(self, name: str) -> None:
        component = self._settings[name].component
        async with self._locks[name]:
            while isinstance(error := await _asking(self._workers.scale(component, 0)), Exception):
                log.warning("model %s could not be unloaded: %s", name, error)
                await asyncio.sleep(AGAIN)
            end = self._now() + LISTED
            while self._serving(name) and self._now() < end:  # noqa: ASYNC110 - else it is taken for the next one
                await asyncio.sleep(LOOK / 10)
        self._do(self.core.unloaded(self._now(), name))


async def _asking(answer: Awaitable[Any]) -> Any:
    """The answer, or the error that is expected while the daemon or the network has trouble."""
    try:
        return await answer
    except (DynamodError, OSError) as error:  # TimeoutError is an OSError
        return error


def _failed(why: str, retry_after: float) -> Overloaded:
    return Overloaded(f"the model could not be loaded: {why}", retry_after=max(1.0, retry_after))


def _settle(future: "asyncio.Future[None] | None", error: Exception | None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
