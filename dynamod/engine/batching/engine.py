"""The part of an engine that routers and statistics see: hashes of requests, footprint, snapshot, load."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dynamod.actor import Total
from dynamod.kvcache.hashes import PrefixHashes
from dynamod.kvcache.store import BlockStore, LevelStatistics
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.kv_events import ForwardPass, Load, Snapshot, WorkerEvent
from dynamod.message.worker import Generate
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineRequest, EngineStatistics, Spawn, answer_limit
from ..capabilities import Exported, implemented
from ..forms import OwnForms
from ..step_clock import StepClock
from .handoff import AskRoom, Done, Held, Put, unlimited
from .scheduler import BatchScheduler
from .steps import Chunk, forward_pass, milliseconds


class BatchingStatistics(EngineStatistics, frozen=True):
    """With the KV cache. Blocks: all, in use, kept for later. `hit_rate`: share of admitted tokens found in it.

    Milliseconds of a block, 0: not known: to compute it, and to load it from memory of the host, from files, and from
    another worker that had it stored. `move_ms`: as of `Load`.
    """

    total_blocks: Annotated[int, Meta(description="Blocks of the KV cache.")] = 0
    active_blocks: Annotated[int, Meta(description="Blocks of the KV cache that requests use.")] = 0
    cached_blocks: Annotated[int, Meta(description="Blocks of the KV cache that are kept for later requests.")] = 0
    hit_rate: Annotated[
        float, Meta(description="Share of admitted prompt tokens that were found in the KV cache, 0 to 1.")
    ] = 0.0
    preemptions: Annotated[
        Total, Meta(description="Requests that gave way to other requests and are computed again.")
    ] = 0
    prefill_ms: Annotated[float, Meta(description="Time to compute a block; 0: not known.")] = 0.0
    host_ms: Annotated[float, Meta(description="Time to load a block from memory of the host; 0: not known.")] = 0.0
    disk_ms: Annotated[float, Meta(description="Time to load a block from a file; 0: not known.")] = 0.0
    peer_ms: Annotated[
        float, Meta(description="Time to load a block that another worker has stored; 0: not known.")
    ] = 0.0
    move_ms: Annotated[float, Meta(description="Time to move a block from a prefill worker; 0: not known.")] = 0.0
    host_tier: LevelStatistics | None = None
    disk_tier: LevelStatistics | None = None


class BatchingEngine(OwnForms, Engine[Generate]):
    """Batches on its own, with one or more schedulers, each over a pool of blocks of `block_size` tokens.

    `start` sets `schedulers`, `clocks` (one each), `caching`, `room` (tokens of a prompt and its answer together), and
    `tiers`, if there are any, and adds the tokens that it hands out to `tokens`. `exports`, `peer_seconds`,
    `move_seconds`: see `HandsOffBlocks`.
    """

    serves: tuple[type[EngineRequest], ...] = (Generate,)

    def __init__(self, options: EngineOptions, spawn: Spawn, block_size: int) -> None:
        super().__init__(options, spawn)
        self.block_size = block_size
        self.caching = True
        self.exports: Collection[Exported] = ()
        self.schedulers: Sequence[BatchScheduler[Any]] = ()
        self.clocks: Sequence[StepClock] = ()
        self.tiers: BlockStore | None = None
        self.peer_seconds = self.move_seconds = 0.0
        self.tokens = self.room = 0
        self._hashed: tuple[Generate, PrefixHashes] | None = None

    def described(self, card: ModelCard, **declared: bool) -> ModelCard:
        """A model's card as that of this engine: with its blocks, and its capabilities, `declared` among them."""
        can = msgspec.structs.replace(self.capabilities, **{"kv_events": self.caching, **declared})
        return msgspec.structs.replace(
            card,
            engine=self.name,
            kv_cache_block_size=self.block_size,
            capabilities=implemented(self, can),
            migration_limit=self.options.migration_limit,
        )

    def submit(self, request: Generate, reply: Reply) -> None:
        """Queue a request. One whose prompt can never fit is refused; an answer ends where cache or context do."""
        if (limit := self._limit(request, reply)) is not None:
            reply.on_cancel(self.queue(request, reply, limit))

    def adopt(self, request: Generate, reply: Reply) -> Held | None:
        """As `submit`, with blocks of its prompt still to come; None when there is nothing to compute."""
        if (limit := self._limit(request, reply)) is None:
            return None
        held = self.hold(request, reply, limit)
        reply.on_cancel(held.cancel)
        return held

    def _limit(self, request: Generate, reply: Reply) -> int | None:
        """Tokens that the answer may have; None when it has them already, which is said. Raises BadRequest."""
        limit = answer_limit(request, self.room)
        if tokens.count(request.prior_output) < limit:
            return limit
        reply.tokens(b"", 0, "length")
        return None

    # KV blocks of prompts between engines, see `capabilities.HandsOffBlocks`.

    @abstractmethod
    def layout(self) -> str:
        """Digest of all that must agree for the bytes of a block to mean the same: weights, types, block size."""

    @abstractmethod
    def export(self, request: Generate, put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """Compute the full blocks of a prompt (with its prior output) except its last token; returns what cancels it.

        Blocks that are in the cache are not computed again. Each is put as soon as it is there and has room, in order.
        """

    @abstractmethod
    def export_stored(self, request: Generate, put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """As `export`, but compute nothing: only the first blocks are put, as far as they are here or in tiers."""

    @abstractmethod
    def hold(self, request: Generate, reply: Reply, limit: int) -> Held:
        """As `queue`, but compute nothing yet: blocks come."""

    @abstractmethod
    def queue(self, request: Generate, reply: Reply, limit: int) -> Callable[[], object]:
        """Have a request computed, up to `limit` tokens of answer; returns what takes it back. Raises BadRequest."""

    @abstractmethod
    def uncached(self, blocks: Sequence[int], length: int) -> int:
        """Tokens to compute for a prompt of `length` tokens; `blocks`: sequence hashes of its full blocks."""

    def hashes(self, request: Generate) -> PrefixHashes:
        """Hashes of a prompt, empty without caching. `footprint` has computed those of the same request just before."""
        hashed, self._hashed = self._hashed, None
        if hashed is not None and hashed[0] is request:
            return hashed[1]
        ids = request.token_ids + request.prior_output if self.caching else b""
        return PrefixHashes(self.block_size, ids, request.salt)

    def footprint(self, request: Generate) -> tuple[tuple[int, ...], int]:
        """Ids that another instance has made count as prompt: they have to be computed."""
        hashes = self.hashes(request)
        self._hashed = request, hashes
        length = tokens.count(request.token_ids) + tokens.count(request.prior_output)
        return tuple(hashes.blocks), self.uncached(hashes.blocks, length)

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        """The blocks of all pools, named by their sequence hashes, those of tiers, and the load."""
        names = tuple(dict.fromkeys(name for scheduler in self.schedulers for name in scheduler.pool.names()))
        below = self.tiers.snapshot() if self.tiers is not None else ()
        return Snapshot(names, names), *below, self.load()

    def load(self) -> Load:
        """Sums over the schedulers."""
        schedulers = self.schedulers
        admitted = sum(one.prompt_tokens for one in schedulers)
        times = (*self.block_times(), self.peer_seconds)
        prefill, host, disk, peer = map(milliseconds, times)
        return Load(
            running=sum(len(one.running) for one in schedulers),
            waiting=sum(len(one.waiting) for one in schedulers),
            active_blocks=sum(one.pool.active for one in schedulers),
            total_blocks=sum(one.pool.capacity for one in schedulers),
            hit_rate=sum(one.cached_tokens for one in schedulers) / max(1, admitted),
            prefill_ms=prefill,
            host_ms=host,
            disk_ms=disk,
            peer_ms=peer,
            move_ms=milliseconds(self.move_seconds),
        )

    @abstractmethod
    def scheduled(self, rank: int) -> tuple[list[Chunk], list[int]]:
        """Of the step that a rank computes: the parts of prompts, and KV tokens of each answer that gets a token."""

    def forward_pass(self, rank: int) -> ForwardPass | None:
        """By the rank's scheduler."""
        if rank >= len(self.clocks):
            return None
        return forward_pass(rank, self.clocks[rank], self.schedulers[rank], *self.scheduled(rank))

    def block_times(self) -> tuple[float, float, float]:
        """Seconds that a block takes: to compute it, to load it from memory of the host, from files; 0: not known."""
        return 0.0, 0.0, 0.0

    def statistics(self) -> BatchingStatistics:
        """Sums over the schedulers; of the steps that run now the one that has lasted longest."""
        steps = [step for clock in self.clocks if (step := clock.current) is not None]
        since, step_tokens, usual = max(steps, default=(None, 0, 0.0))
        return BatchingStatistics(
            **msgspec.structs.asdict(self.load()),
            tokens=self.tokens,
            steps=sum(clock.steps for clock in self.clocks),
            in_step_for=since,
            step_tokens=step_tokens,
            usual_step_seconds=usual,
            cached_blocks=sum(one.pool.cached for one in self.schedulers),
            preemptions=sum(one.preemptions for one in self.schedulers),
            host_tier=self.tiers.statistics("CPU_PINNED") if self.tiers is not None else None,
            disk_tier=self.tiers.statistics("DISK") if self.tiers is not None else None,
        )
