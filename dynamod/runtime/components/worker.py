"""The worker component: an engine in a process of its own."""

import asyncio
import functools
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from dynamod.actor import ActorError, handle
from dynamod.discovery.base import Watcher
from dynamod.engine.base import Engine, EngineOptions, Job, Spawn
from dynamod.engine.names import engine_class, require_format
from dynamod.extension.installed import block_stores, pool_of
from dynamod.graph.typed import validate
from dynamod.message.discovery import LOAD_METRICS, DisaggregationMode, ModelCard
from dynamod.message.errors import DynamodError
from dynamod.message.node import Heartbeat
from dynamod.parsers import AUTO
from dynamod.preprocess.override import template_text, with_template
from dynamod.runtime.context import ComponentContext
from dynamod.worker.parts import PartQuestion, Question, WorkerContext
from dynamod.worker.settings import WorkerSettings
from dynamod.worker.worker import Worker

log = logging.getLogger("dynamod.worker")


class Metrics(Job, frozen=True):
    """A call of the endpoint `load_metrics`."""


class WorkerComponent(Worker):
    """Loads the engine that the configuration names and serves it at the `generate` endpoint, its load next to it."""

    def __init__(self, ctx: ComponentContext) -> None:
        self._ctx = ctx
        self.settings: WorkerSettings = validate(WorkerSettings, ctx.config, ctx.name)
        self._static, self._endpoint = self.settings.static, self.settings.endpoint
        self._announced = False
        super().__init__(_maker(self.settings.name), EngineOptions(), self._published, ctx.withdraw)

    async def started(self) -> None:
        """Find the model, perhaps by a download, and load the engine."""
        self._ctx.process_context.heartbeat = self.heartbeat
        # The greeting of the daemon says how other nodes reach this one: engines and parts of features are told once.
        await self._ctx.process_context.registry.leased(timeout=60)
        service = self._ctx.service
        mode = service.role or self.settings.mode(str(service.spec.get("component_type")))
        host = self.transfer_host() if mode != "aggregated" else ""
        await self._find_model(mode, host)
        await super().started()
        if self.settings.node_rank:
            return  # the leader takes the requests
        for kind in (kind for part in self.parts.values() for kind in part.questions):
            self._ctx.process_context.questions[kind.name] = functools.partial(self._ask_part, kind)
        await self.prepare_parts()
        await self._ctx.announce(self._endpoint, self.context.ref, self._card, static=self._static)
        if not self._static:
            self._ctx.serve(LOAD_METRICS, self.context.ref, Metrics)
            self._ctx.publish(LOAD_METRICS)
        self._announced = True
        self.start_parts()
        self.role_told(self.role, "", "Starting")

    async def _find_model(self, mode: DisaggregationMode, host: str) -> None:
        settings, fetch = self.settings, self._ctx.fetch
        entry = settings.entry
        path = await fetch(settings.model, weights=entry.weights) if entry.model else None
        require_format(settings.name, path)
        config_path = await fetch(settings.model_config, weights=False) if settings.model_config else None
        if settings.chat_template and path is not None:
            template = template_text(settings.chat_template)
            config_path = await asyncio.to_thread(with_template, config_path or path, template)
        sockets = Path(self._ctx.process_context.plan.server).parent
        options = settings.options(path, config_path)
        self._options = replace(
            options, sockets=sockets, disaggregation_mode=mode, transfer_host=host, stores=block_stores
        )

    def part_context(self, engine: Engine[Any]) -> WorkerContext:
        """With the settings and the place of the process."""
        process = self._ctx.process_context
        return replace(
            super().part_context(engine),
            settings=self.settings,
            name=process.plan.name,
            index=process.plan.index,
            signing=process.transport.signing,
            tls=process.transport.tls,
        )

    async def follow(self, prefix: str, watcher: Watcher) -> None:
        """Of the registry of the node."""
        await self._ctx.process_context.caught_up(prefix, watcher)

    def transfer_host(self) -> str:
        """As the settings say, else where this node is reached."""
        return self.settings.transfer_host or self._ctx.process_context.host()

    def progress(self, text: str) -> None:
        """Logged, and shown by `ps` while the component starts."""
        super().progress(text)
        self._ctx.tell(text)

    def heartbeat(self) -> Heartbeat:
        """What the daemon judges the worker by."""
        if self._engine is None:
            return Heartbeat()
        now = self._engine.statistics()
        return Heartbeat(now.in_step_for, now.step_tokens, now.usual_step_seconds, now.running, now.waiting)

    def coming(self, card: ModelCard) -> None:
        """The frontends of the node read the files meanwhile; not for a worker that only helps others."""
        if not (self._announced or self._static or pool_of(self.role)):
            self._ctx.expect(self._endpoint, card)

    def phase(self, name: str) -> None:
        """Kept with its seconds, and shown by `ps` while the component starts."""
        self._ctx.tell("", phase=name)

    @handle
    async def load_metrics(self, message: Metrics) -> None:
        """Tell the engine's load in NVIDIA Dynamo's form (ForwardPassMetrics)."""
        message.reply.accepted()
        message.reply.items((self.forward_pass_metrics(),), "stop")

    def forward_pass_metrics(self) -> dict[str, Any]:
        """`worker_stats` and `kv_stats`; slots in all are 0 where the engine has no limit of its own.

        `forward_passes`: of each rank the step that it computes now, in the later form, without what is not known.
        """
        assert self._engine is not None
        load, worker = self._engine.load(), str(self._ctx.process_context.registry.lease)
        return {
            "worker_stats": {
                "data_parallel_rank": None,
                "request_active_slots": load.running,
                "request_total_slots": int(self._options.arguments.get("max_num_seqs", 0)),
                "num_requests_waiting": load.waiting,
            },
            "kv_stats": {
                "kv_active_blocks": load.active_blocks,
                "kv_total_blocks": load.total_blocks,
                "gpu_cache_usage_perc": load.active_blocks / load.total_blocks if load.total_blocks else 0.0,
                "gpu_prefix_cache_hit_rate": load.hit_rate,
            },
            "spec_decode_stats": None,
            "forward_passes": [{"version": 1, "worker_id": worker, **_known(step)} for step in self.forward_passes()],
        }

    def _published(self, card: ModelCard) -> None:
        names = ("tool_call_parser", "reasoning_parser", "reasoning_field_name")
        given = {name: value for name in names if (value := getattr(self.settings, name)) not in AUTO}
        self._card = card = msgspec.structs.replace(card, **given)
        self._ctx.pool = pool_of(self.role)
        if self._announced and not self._static:  # else the next request learns of it
            self._ctx.publish(self._endpoint, card)
            self._ctx.publish(LOAD_METRICS)

    def role_told(self, role: DisaggregationMode, text: str, state: str = "Ready") -> None:
        """Shown by `ps`; and the daemon starts the process again with this role."""
        self._ctx.tell(text, state, role)

    async def _ask_part(self, kind: type[Question], arguments: dict[str, Any]) -> Any:
        """Raises UserError, DynamodError."""
        question = kind.of(arguments)
        try:
            answer = await self.context.ref.ask(PartQuestion(question), timeout=question.patience)
        except ActorError as error:
            raise DynamodError(str(error)) from None
        return msgspec.to_builtins(answer)


def _known(numbers: msgspec.Struct) -> dict[str, Any]:
    """A struct's numbers by name, and those of its structs, without what is None."""
    fields = msgspec.structs.asdict(numbers).items()
    return {
        name: _known(value) if isinstance(value, msgspec.Struct) else value
        for name, value in fields
        if value is not None
    }


def _maker(name: str) -> Any:
    def make(options: EngineOptions, spawn: Spawn) -> Engine[Any]:
        return engine_class(name, options.arguments)(options, spawn)

    return make
