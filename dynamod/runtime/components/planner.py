"""The planner component: it decides how many workers each pool of its graph has, and has the daemon do it."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dynamod.actor import Actor, Reason
from dynamod.discovery.keys import CARDS, card_key
from dynamod.discovery.records import keep
from dynamod.graph.typed import validate
from dynamod.ingress.subscriptions import EventSubscriptions
from dynamod.message.control import patience
from dynamod.message.discovery import PREFILL, Instance, ModelCard
from dynamod.message.errors import DynamodError, UserError
from dynamod.message.kv_events import WorkerEvent
from dynamod.message.pools import Pool
from dynamod.planner.metrics import rows
from dynamod.planner.pool import PlannedPool
from dynamod.planner.reconcile import Action
from dynamod.planner.settings import PlannerSettings
from dynamod.planner.worker_view import WorkerView
from dynamod.runtime.context import ComponentContext

from .worker import LOAD_METRICS

log = logging.getLogger("dynamod.planner")

ASK = 5.0
"""Seconds that the daemon has to tell of a pool's processes."""

LIMITS = {"min": "min_endpoint", "max": "max_gpu_budget"}
"""What `dynamo planner set` takes, and the settings that it changes."""

Key = tuple[str, int]
"""Component and lease."""


class PlannerComponent(Actor):
    """Follows the workers of the pools that its service depends on. One task looks at the pools and decides."""

    def __init__(self, ctx: ComponentContext) -> None:
        self._ctx = ctx
        self._settings: PlannerSettings = validate(PlannerSettings, ctx.config, ctx.name)
        self._pools: dict[str, PlannedPool] = {}
        self._places: dict[tuple[str, str], str] = {}  # namespace and component, as instances have them
        for attribute, info in ctx.service.spec.get("depends", {}).items():
            kind = PREFILL if attribute.startswith(PREFILL) else "decode"
            self._pools[info["service"]] = PlannedPool(info["service"], kind, self._settings)
            self._places[info["namespace"], info["component"]] = info["service"]
        self._cards: dict[str, ModelCard] = {}
        self._wrong = ""  # what the daemon said last, when it did not answer
        self._subscriptions: EventSubscriptions

    async def started(self) -> None:
        """Follow the workers that are there, and begin to tick. Raises UserError without a pool."""
        context = self._ctx.process_context
        if not self._pools:
            name = self._ctx.name
            raise UserError(f"{name} has no pool to plan", f"write {name}.link(Worker) in the graph")
        await context.registry.leased(timeout=60)
        spawn, clock = self.context.task, asyncio.get_running_loop().time
        self._subscriptions = EventSubscriptions(context.transport, spawn, clock, self._events, steps=True)
        context.registry.watch(CARDS, keep(self._cards, ModelCard))
        context.view.on_change(self._follow)
        context.questions["planner"] = self._answer
        context.rows.append(self._rows)
        self._follow()
        self.context.task(self._run(), "ticks")

    async def stopping(self, reason: Reason) -> None:
        """Let go of the workers' events."""
        if hasattr(self, "_subscriptions"):
            self._subscriptions.close()

    # What is seen.

    def _follow(self) -> None:
        instances = self._ctx.process_context.view.all_instances()
        there = {key: instance for instance in instances if (key := self._key(instance)) is not None}
        for name, pool in self._pools.items():
            for lease in [lease for lease in pool.workers if (name, lease) not in there]:
                del pool.workers[lease]
                self._subscriptions.drop((name, lease))
        for (name, lease), instance in there.items():
            card = self._cards.get(card_key(instance))
            if card is not None and lease not in self._pools[name].workers:
                self._pools[name].workers[lease] = WorkerView(card.kv_cache_block_size or 0)
                self._subscriptions.follow((name, lease), instance)

    def _key(self, instance: Instance) -> Key | None:
        name = self._places.get((instance.namespace, instance.component))
        if name is None or instance.endpoint == LOAD_METRICS or instance.state != "ready":
            return None
        return name, instance.instance_id

    def _events(self, key: Key, events: Sequence[WorkerEvent], snapshot: bool) -> None:
        worker = self._pools[key[0]].workers.get(key[1])
        if worker is not None:
            worker.take(events, snapshot)

    # What is done.

    async def _run(self) -> None:
        clock, due = asyncio.get_running_loop().time, 0.0
        while True:
            await asyncio.sleep(min(self._settings.metric_pulling_interval, self._settings.adjustment_interval))
            self._follow()  # a card may have come behind its instance
            self._subscriptions.look()
            states = {name: state for name in self._pools if (state := await self._look(name)) is not None}
            now = clock()
            for name, state in states.items():
                self._pools[name].look(now, state)
            if now < due or len(states) < len(self._pools):
                continue
            due = now + self._settings.adjustment_interval
            for name, state in states.items():
                self._tick(self._pools[name], now, state)

    async def _look(self, component: str) -> Pool | None:
        """The pool's processes; None when the daemon does not tell."""
        try:
            found = await self._ctx.process_context.registry.ask("pool", {"component": component}, timeout=ASK)
        except (DynamodError, TimeoutError) as error:
            wrong = f"{component} is not planned: {error or 'the daemon does not answer'}"
            if wrong != self._wrong:
                log.warning("%s", wrong)
            self._wrong = wrong
            return None
        self._wrong = ""
        return msgspec.convert(found, Pool)

    def _tick(self, pool: PlannedPool, now: float, state: Pool) -> None:
        others = sum(other.expected for other in self._pools.values() if other is not pool)
        action = pool.tick(now, time.time(), state, self._settings.max_gpu_budget - others)
        record = pool.records[-1]
        if action.refused and (len(pool.records) < 2 or pool.records[-2].refused != action.refused):
            proposal = f"{record.ready + record.starting} -> {record.tick.target} workers"
            why = f": {record.last_error}" if record.last_error else ""
            log.info("%s: %s (%s) not done: %s%s", pool.component, proposal, record.tick.reason, action.refused, why)
        if action.replicas is not None:
            log.info(
                "%s: %d -> %d processes (%s; %d requests, %d prompt tokens wait, %d KV tokens of %d)",
                *(pool.component, state.wanted, action.replicas, record.tick.reason),
                *(record.arrived, record.queued, record.context, record.capacity),
            )
            self.context.task(self._scale(pool, action), f"scale {pool.component}")

    async def _scale(self, pool: PlannedPool, action: Action) -> None:
        pool.reconciler.in_progress = True
        finish = self._settings.drain_timeout
        arguments = {"component": pool.component, "replicas": action.replicas, "leave": action.leave, "timeout": finish}
        try:
            await self._ctx.process_context.registry.ask("scale", arguments, timeout=patience(finish))
        except (DynamodError, TimeoutError) as error:
            log.error("%s could not be scaled: %s", pool.component, error or "the daemon does not answer")
            pool.reconciler.failed_to_scale()
        finally:
            pool.reconciler.in_progress = False

    # What is asked.

    async def _answer(self, arguments: dict[str, Any]) -> Any:
        """`action`: status, pause, resume, set (with `min`, `max`); `component`: one pool. Raises UserError."""
        wanted = str(arguments.get("component") or "").rpartition("/")[2]
        pools = [pool for name, pool in self._pools.items() if wanted in ("", name)]
        if not pools:
            raise UserError(f"no pool '{wanted}' is planned", f"planned: {', '.join(self._pools)}")
        match arguments.get("action", "status"):
            case "pause":
                for pool in pools:
                    pool.reconciler.paused = True
            case "resume":
                for pool in pools:
                    pool.reconciler.resume()
            case "set":
                self._set(pools, {key: value for key, value in arguments.items() if key not in ("action", "component")})
            case "status":
                pass
            case other:
                raise UserError(f"a planner has no action '{other}'", "status, pause, resume, set")
        return [
            {**pool.status(), "records": [msgspec.to_builtins(record) for record in pool.records]} for pool in pools
        ]

    def _set(self, pools: Sequence[PlannedPool], given: dict[str, Any]) -> None:
        if not given or (unknown := given.keys() - LIMITS.keys()):
            raise UserError(f"set takes {' and '.join(LIMITS)}", f"not {', '.join(sorted(unknown))}" if given else "")
        for key, value in given.items():
            if not isinstance(value, int) or isinstance(value, bool) or not (key == "max") <= value <= 256:
                raise UserError(f"{key} is {value!r}", f"a whole number from {int(key == 'max')} to 256")
        changed = [pool.limited(**{LIMITS[key]: value for key, value in given.items()}) for pool in pools]
        for pool, settings in zip(pools, changed, strict=True):
            pool.use(settings)

    def _rows(self) -> Iterator[tuple[str, dict[str, str], msgspec.Struct]]:
        return rows(self._pools.values())
