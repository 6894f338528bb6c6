"""What runs in simulated processes: the real worker and the real processor, as the daemon's components make them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from dynamod.actor import ActorError, MailboxFull, Reason, System
from dynamod.discovery.keys import EXITED, card_key, instance_key
from dynamod.discovery.view import View
from dynamod.engine.base import Engine, EngineOptions, Job, Spawn
from dynamod.engine.capabilities import MovesBlocks
from dynamod.extension.installed import pool_of
from dynamod.features.prefill.worker import Handoffs
from dynamod.features.role_switch.worker import Switch
from dynamod.features.tiers.dispatch import PeerDispatch
from dynamod.ingress.processor import Processor, ProcessorOptions, ProcessorPlace
from dynamod.message import tokens
from dynamod.message.discovery import DisaggregationMode, Instance, ModelCard
from dynamod.message.errors import DynamodError
from dynamod.message.kv_events import Load, Snapshot
from dynamod.message.worker import Generate, Prefill, Request, TransferShape
from dynamod.router.router import Router, RouterSettings
from dynamod.transport.base import Reply
from dynamod.worker.parts import PartQuestion
from dynamod.worker.worker import Worker

from .etcd import SimulatedRegistry
from .model import SimulatedLoader, SimulatedMocker
from .shape import CLOCKS, MODEL, PATHS, POISON, WORKERS, Poison
from .transfer import SimulatedHandoff, SimulatedTransfer, Transfers
from .wire import Process, SimulatedTransport

STRIKES = 0.02
"""Seconds behind which a poison request crashes or stops its worker."""

STOPPED_LOOK = 0.05
"""Seconds between looks whether a stopped process, which is to drain, goes on."""


async def _at_once() -> None:
    return


class SimulatedWorker(Worker):
    """The worker component: engine, lease, then instance and card in the registry."""

    def __init__(
        self,
        process: Process,
        registry: SimulatedRegistry,
        options: EngineOptions,
        report: Callable[[str], None],
        struck: Callable[[Poison, str], None],
        transfers: Transfers,
        mode: DisaggregationMode,
        component: str = WORKERS,
        exact: bool = True,
    ) -> None:
        self._exact = exact
        self.session_lease: float | None = None
        self._path, self._announced = PATHS.get(component, PATHS[WORKERS]), False
        self.told: Callable[[DisaggregationMode, str], None] = lambda _role, _text: None  # its role, to its daemon
        self.process, self.registry, self._struck, self._transfers = process, registry, struck, transfers
        self._names: dict[Reply, str] = {}  # of requests
        self.engine: SimulatedMocker | None = None
        self.instance: Instance | None = None  # what the registry has for it
        self.starting: Callable[[], Awaitable[None]] = _at_once  # what happens before the real worker starts
        self.draining: Callable[[], Awaitable[None]] = _at_once  # and before it drains
        self.ending: Callable[[Reason], None] = lambda _reason: None  # called when it ends, with its requests
        self._report = report
        super().__init__(self._made, replace(options, disaggregation_mode=mode), self._published, self._withdrawn)

    def _made(self, options: EngineOptions, spawn: Spawn) -> Engine[Any]:
        self.engine = SimulatedMocker(options, spawn, self._own_transfer, exact=self._exact)
        return self.engine

    def _own_transfer(self, engine: SimulatedMocker, shape: TransferShape) -> SimulatedTransfer:
        return SimulatedTransfer(engine, shape, self.process, self._transfers, self._computes)

    async def started(self) -> None:
        """As the worker component starts."""
        await self.starting()
        await super().started()
        await self.registry.leased(timeout=60)
        self._announced = True
        self._announce()
        self.role_told(self.role, "")
        self._report("ready")

    def _announce(self) -> None:
        namespace, component, endpoint = self._path.split(".")
        transport = {"simulated": self.process.name}
        self.instance = Instance(
            *(namespace, component, endpoint, self.registry.lease, transport),
            node=f"n{self.process.node}",
            pid=self.process.pid,
            process=self.process.name,
            pool=pool_of(self.role),
        )
        self.registry.put(instance_key(self.instance), msgspec.json.encode(self.instance))
        self.registry.put(card_key(self.instance), msgspec.json.encode(self._card))

    async def asked(self, command: str, arguments: dict[str, Any]) -> Any:
        """As the worker component answers its daemon. Raises UserError, DynamodError."""
        message = Switch.of(arguments)
        try:
            return msgspec.to_builtins(await self.context.ref.ask(PartQuestion(message), timeout=message.patience))
        except ActorError as error:
            raise DynamodError(f"{command}: {error}") from None

    def role_told(self, role: DisaggregationMode, text: str) -> None:
        """Shown by the daemon, which starts it again with this role."""
        self.told(role, text)

    async def drained(self) -> None:
        """As the real one, unless it does not listen."""
        await self.draining()
        while self.process.frozen and self.process.alive:  # noqa: ASYNC110 - virtual time; it hears nothing now
            await asyncio.sleep(STOPPED_LOOK)
        await super().drained()

    def _published(self, card: ModelCard) -> None:
        self._card = card
        if self._announced:
            self._announce()

    def leave(self) -> None:
        """Nobody finds it any more."""
        self._withdrawn()

    def _withdrawn(self) -> None:
        instance, self.instance = self.instance, None
        if instance is not None and self.process.alive:
            self.registry.delete(card_key(instance))
            self.registry.delete(instance_key(instance))

    async def stopping(self, reason: Reason) -> None:
        """Leave, and let the process end."""
        self.ending(reason)
        await super().stopping(reason)
        self._report("stopped")

    def handlers(self, engine: Engine[Any]) -> Any:
        """As the real one, with simulated hand-offs where the engine does not move blocks by itself."""
        part = self.handoffs
        part.lease = self.session_lease
        if not (isinstance(engine, MovesBlocks) and engine.own_transfer is not None):
            part.make = lambda: SimulatedHandoff(  # type: ignore[method-assign]
                engine, self.context.task, self.process, self._transfers, self._computes
            )
        return super().handlers(engine)

    @property
    def handoffs(self) -> Handoffs:
        """The part that has them."""
        part = self.parts["prefill"]
        assert isinstance(part, Handoffs)
        return part

    def _begin_work(self, engine: Engine[Any], request: Any, reply: Reply, begin: Callable[[Any, Reply], None]) -> None:
        if isinstance(request, Prefill):  # blocks that are here: the engine computes nothing
            super()._begin_work(engine, request, reply, begin)
            return
        self._names[reply] = request.request_id
        reply.on_end(lambda _cancelled: self._names.__delitem__(reply))
        super()._begin_work(engine, request, reply, begin)
        if not (isinstance(request, Generate) and request.handoff is not None):
            self._computes(request, reply)

    def _computes(self, request: Any, reply: Reply) -> None:
        """The engine begins to compute the prompt."""
        for kind, token in POISON.items():
            if request.token_ids.endswith(tokens.pack((token,))):
                asyncio.get_running_loop().call_later(STRIKES, self.process.enter, partial(self._strike, kind, reply))

    def _strike(self, kind: Poison, reply: Reply) -> None:
        if (name := self._names.get(reply)) is not None:
            self._struck(kind, name)

    def requests(self) -> Collection[str]:
        """Ids of the requests in the engine's hands."""
        return self._names.values()

    def load(self) -> Load:
        """The engine's own count."""
        return self.engine.load() if self.engine is not None else Load(0, 0, 0, 0, 0.0)

    def working(self) -> tuple[float | None, int]:
        """As `SimulatedMocker.working`."""
        return self.engine.working() if self.engine is not None else (None, 0)

    def blocks(self) -> set[int]:
        """Names of the blocks in the engine's cache."""
        items = self.engine.snapshot() if self.engine is not None else ()
        return {name for item in items if isinstance(item, Snapshot) for name in item.blocks}

    @property
    def open_requests(self) -> int:
        """Requests in the engine's hands."""
        return self.statistics().open


class EndpointDispatcher:
    """Hands requests for a process to the one actor in it, and refuses them where there is none.

    `lives()`: the actor at `path` is that of this process, and not yet that of the next one.
    """

    def __init__(self, system: System, path: str, lives: Callable[[], bool]) -> None:
        self._ref, self._lives = system.ref(path), lives

    def receive(self, endpoint: str, request: Request, reply: Reply) -> None:
        """Give the request to the actor; a full mailbox refuses it."""
        if not self._lives():
            reply.failed("Overloaded", f"{endpoint} has ended", retry=True)
            return
        try:
            self._ref.send_nowait(Job(request, reply))
        except MailboxFull:
            reply.failed("Overloaded", f"the mailbox of {endpoint} is full", retry=True)


class SimulatedProcessor(Processor):
    """The processor component, with a model that is in memory."""

    def __init__(
        self,
        process: Process,
        registry: SimulatedRegistry,
        transport: SimulatedTransport,
        routing: RouterSettings,
        config: object,
        report: Callable[[str], None],
        decisions: int = 1000,
    ) -> None:
        self.process, self.registry, self.transport = process, registry, transport
        self.view = View(registry)
        self._report = report
        node = f"n{process.node}"
        super().__init__(
            self.view,
            transport,
            ProcessorOptions(routing=routing, limits=CLOCKS, decisions=decisions, config=config),
            ProcessorPlace(node=lambda: node),
        )
        self.models.loader = SimulatedLoader()

    async def started(self) -> None:
        """As the processor component starts: it is ready when the models that are there can be asked for."""
        await self.registry.leased(timeout=60)
        self.registry.watch(EXITED, self.transport.exited)
        await super().started()
        peers = self.dispatch.stages["tiers"]
        assert isinstance(peers, PeerDispatch)
        peers.move = 0  # prompts are short here
        await self._caught_up()
        self._report("ready")

    async def _caught_up(self) -> None:
        try:
            async with asyncio.timeout(5.0):
                while not self.cards:  # noqa: ASYNC110 - virtual time
                    await asyncio.sleep(0.1)
        except TimeoutError:
            self._report("no model yet")

    async def stopping(self, reason: Reason) -> None:
        """Close the connections."""
        await self.transport.close()
        self._report("stopped")

    @property
    def waiting(self) -> int:
        """Requests in the queue of the one model."""
        return self.dispatch.waiting((MODEL, ""))

    @property
    def isolating(self) -> bool:
        """Whether an instance takes no requests because one is tried alone there."""
        return self.dispatch.reserved((MODEL, "")) is not None

    def router(self) -> Router | None:
        """The router of the one model, None before it is known."""
        return self.dispatch.routers.get((MODEL, ""))
