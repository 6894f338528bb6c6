"""Publishers: how an engine in Python publishes what its KV cache holds and how busy it is."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamod.kvcache.hashes import local_hashes
from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.message.kv_events import ForwardPass, Load, QueuedRequests, ScheduledRequests

if TYPE_CHECKING:
    from .runtime import Component, Endpoint

log = logging.getLogger("dynamod.python")

MASK = (1 << 64) - 1


class KvEventPublisher:
    """Tells all routers which blocks the KV cache of this process's `component` holds. Made in the worker function;
    its methods may be called from any thread, and return at once.

    `worker_id`: `endpoint.lease_id()`, no process publishes for another one. `kv_block_size`: tokens, the same as in
    `register_llm`. Raises UserError otherwise.
    """

    def __init__(self, component: "Component", worker_id: int, kv_block_size: int) -> None:
        self._block_size = whole_number("kv_block_size", kv_block_size)
        connection = component.runtime.connection()
        if worker_id != (lease := connection.process_context.registry.lease):
            raise UserError(f"worker_id is {worker_id!r}, this process is {lease}", "give endpoint.lease_id()")
        self._loop = connection.loop
        self._block_registry = connection.block_registry(component.namespace, component.name)
        self._skipped: set[str] = set()
        self._block_registry.publish(kv_block_size)

    def publish_stored(
        self,
        event_id: int,
        token_ids: Iterable[int],
        num_block_tokens: Iterable[int],
        block_hashes: Iterable[int],
        lora_id: int | None = 0,
        parent_hash: int | None = None,
    ) -> None:
        """Blocks that follow each other are in the cache, after the block `parent_hash` (None: from a prompt's start).

        `token_ids`: of all blocks, one after the other; `num_block_tokens`: how many each has; `block_hashes`: the
        engine's own names, 64 bits with or without sign. From the first block on that is not full, and with another
        parent than was published before, nothing is published, with a warning. The same holds for blocks of adapters
        (`lora_id` above 0), which routers cannot distinguish from others. `event_id` has no effect: subscriptions have
        numbers of their own. Raises UserError for lists that do not fit together.
        """
        ids, sizes = _whole("token_ids", token_ids), _whole("num_block_tokens", num_block_tokens)
        names = [name & MASK for name in _whole("block_hashes", block_hashes)]
        if len(sizes) != len(names) or sum(sizes) > len(ids) or min(sizes, default=0) < 0:
            raise UserError(
                f"{len(names)} block_hashes and {len(sizes)} num_block_tokens (sum {sum(sizes)}) for {len(ids)} "
                "token_ids",
                "give one hash and one number per block, and the tokens of all blocks",
            )
        if lora_id:
            self._skip("lora", "blocks of adapters are not published (lora_id %s)", lora_id)
            return
        full = next((place for place, size in enumerate(sizes) if size != self._block_size), len(sizes))
        if full < len(sizes):
            self._skip("size", "a block of %d tokens is not published, blocks have %d", sizes[full], self._block_size)
        if not full:
            return
        try:
            packed = tokens.pack(ids[: full * self._block_size])
        except OverflowError:
            raise UserError("a token id is no 32-bit number", "give ids of the model's vocabulary") from None
        parent = None if parent_hash is None else parent_hash & MASK
        local = local_hashes(packed, self._block_size)
        in_loop(self._loop, lambda: self._block_registry.stored(parent, names[:full], local))

    def publish_removed(self, event_id: int, block_hashes: Iterable[int]) -> None:
        """Blocks of these names are not in the cache any more. Raises UserError for what are no numbers."""
        names = [name & MASK for name in _whole("block_hashes", block_hashes)]
        in_loop(self._loop, lambda: self._block_registry.removed(names))

    def _skip(self, kind: str, text: str, *values: Any) -> None:
        if kind not in self._skipped:
            self._skipped.add(kind)
            log.warning(text + "; this is said once", *values)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """Requests that run, that can run at once, and that wait."""

    request_active_slots: int
    request_total_slots: int
    num_requests_waiting: int
    data_parallel_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvStats:
    """Blocks in use and in all, the share in use, the rate of prefix hits (both 0 to 1)."""

    kv_active_blocks: int
    kv_total_blocks: int
    gpu_cache_usage_perc: float
    gpu_prefix_cache_hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPassMetrics:
    """How busy an engine is. `spec_decode_stats` has no effect here."""

    worker_stats: WorkerStats
    kv_stats: KvStats
    spec_decode_stats: Any = None


class WorkerMetricsPublisher:
    """Tells routers, and `dynamo top`, how busy an engine is. `publish` may be called from any thread."""

    def __init__(self) -> None:
        self._told: Load | None = None
        self._set: Callable[[Load], None] | None = None

    async def create_endpoint(self, component: "Component", dp_rank: int = 0) -> None:
        """Whose engine it is; what was published before counts. `dp_rank` has no effect. Raises UserError."""
        connection = await component.runtime.connect()
        block_registry, loop = connection.block_registry(component.namespace, component.name), connection.loop

        def note(load: Load) -> None:
            block_registry.load = load

        self._set = lambda load: in_loop(loop, lambda: note(load))
        if self._told is not None:
            self._set(self._told)

    def publish(self, metrics: ForwardPassMetrics | int, *numbers: float) -> None:
        """The load now: a ForwardPassMetrics, or the seven numbers of the first version (active slots, all slots,
        active blocks, all blocks, requests that wait, share in use, hit rate). Raises UserError.
        """
        if isinstance(metrics, ForwardPassMetrics) and not numbers:
            worker, kv = metrics.worker_stats, metrics.kv_stats
            counts: list[Any] = [worker.request_active_slots, worker.num_requests_waiting]
            counts += [kv.kv_active_blocks, kv.kv_total_blocks]
            rate = kv.gpu_prefix_cache_hit_rate
        elif isinstance(metrics, int) and len(numbers) == 6:
            counts, rate = [metrics, *(numbers[place] for place in (3, 1, 2))], numbers[5]
        else:
            raise UserError("publish takes a ForwardPassMetrics", "or seven numbers, as in the first version")
        try:
            running, waiting, active, total = map(int, counts)
            load = Load(running, waiting, active, total, float(rate))
        except (TypeError, ValueError) as error:
            raise UserError(f"a number of the metrics is none: {error}", "give whole numbers, and rates") from None
        if min(running, waiting, active, total) < 0 or not 0 <= load.hit_rate <= 1:
            raise UserError(f"impossible metrics: {load}", "numbers from 0 upwards, rates from 0 to 1")
        self._told = load
        if self._set is not None:
            self._set(load)


class FpmDirectPublisher:
    """Tells planners of the steps of an engine, and shows them as metrics. `publish` may be called from any thread.

    `worker_id`: `endpoint.lease_id()`. `dp_size`: ranks of the engine. Raises UserError.
    """

    def __init__(self, endpoint: "Endpoint", worker_id: str | int, dp_size: int = 1) -> None:
        connection, address = endpoint.runtime.connection(), endpoint.address
        if str(worker_id) != str(lease := connection.process_context.registry.lease):
            raise UserError(f"worker_id is {worker_id!r}, this process is {lease}", "give endpoint.lease_id()")
        self._steps = [0] * whole_number("dp_size", dp_size)  # of each rank
        self._loop = connection.loop
        self._block_registry = connection.block_registry(address.namespace, address.component)

    def publish(self, *, dp_rank: int, wall_time_secs: float, **counts: int) -> None:
        """A rank has computed a step, which took `wall_time_secs`. One that says nothing for 1 s is idle.

        `counts`: fields of `ScheduledRequests` after `scheduled_`, of `QueuedRequests` after `queued_`. What is
        left out is not known. Raises UserError.
        """
        if whole_number("dp_rank", dp_rank, 0) >= len(self._steps):
            raise UserError(f"dp_rank is {dp_rank}, dp_size {len(self._steps)}", "give dp_size=... to the publisher")
        for name, value in {"wall_time_secs": wall_time_secs, **counts}.items():
            if name not in _COUNTS:
                raise UserError(f"publish has no argument {name}", f"known: {', '.join(_COUNTS)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise UserError(f"{name} is {value!r}", "give a number from 0 upwards")
        scheduled, queued = (
            {name.removeprefix(kind): value for name, value in counts.items() if name.startswith(kind)}
            for kind in ("scheduled_", "queued_")
        )
        self._steps[dp_rank] += 1
        requests = ScheduledRequests(**scheduled), QueuedRequests(**queued)
        step = ForwardPass(self._steps[dp_rank], float(wall_time_secs), *requests, dp_rank)
        in_loop(self._loop, lambda: [told(step) for told in tuple(self._block_registry.stepped)])

    def shutdown(self) -> None:
        """Nothing to do: there are no tasks."""


_COUNTS = (
    "wall_time_secs",
    *(f"scheduled_{name}" for name in ScheduledRequests.__struct_fields__),
    *(f"queued_{name}" for name in QueuedRequests.__struct_fields__),
)


def in_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call it in the loop: now when it is the running one, else soon. A loop that is closed has no readers."""
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        function()
        return
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """An argument that is a whole number. Raises UserError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} is {value!r}", f"give a whole number from {least} upwards")
    return value


def _whole(name: str, values: Iterable[int]) -> list[int]:
    try:
        return [value.__index__() for value in values]
    except (TypeError, AttributeError):
        raise UserError(f"{name} is no list of whole numbers: {values!r}"[:200], "give a list of int") from None
