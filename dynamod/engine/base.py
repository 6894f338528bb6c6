"""What every engine implements.

Token engines take `Generate` (ids in, ids out); text engines take `Chat` (the client's request in, text out). An engine
answers through the `Reply` it is given: `tokens`, `text` or `items` once per step, the last with a finish reason, or
`failed`. It watches `reply.cancelled` (or `on_cancel`) and frees the slot then.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from dynamod.message.discovery import Capabilities, EngineKind, ModelCard
from dynamod.message.kv_events import Load, WorkerEvent
from dynamod.message.worker import Chat, Generate, Request
from dynamod.transport.base import Reply

Spawn = Callable[[Coroutine[Any, Any, Any], str], Any]
"""Starts a task that belongs to the worker actor (its exception crashes the worker)."""


class EngineStatistics(msgspec.Struct, frozen=True):
    """Load now and totals. `in_step_for`: seconds since the current step began, None between steps.

    `step_tokens`: tokens that this step computes, of prompts and answers.
    """

    running: int = 0
    waiting: int = 0
    tokens: int = 0
    steps: int = 0
    in_step_for: float | None = None
    step_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is started with. `arguments` are the engine's own (`--extra-engine-args`, YAML keys).

    `kv_cache_block_size`: tokens; None: the user has not said, the engine's own.
    """

    name: str = ""
    path: Path | None = None
    config_path: Path | None = None
    context_length: int | None = None
    kv_cache_block_size: int | None = None
    migration_limit: int = 3
    tensor_parallel_size: int = 1
    base_gpu_id: int = 0
    num_nodes: int = 1
    node_rank: int = 0
    leader_addr: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


def _nobody(_what: object) -> None:
    """Nobody wants to know."""


class Engine(ABC):
    """One loaded model. Made in its own process; `start` may take long and must not block the event loop.

    The worker sets, before `start`: `tell(item)`, for what happens in the KV cache (with `capabilities.kv_events`), and
    `computed(reply)`, to be called once when a request's first token is there. Both are cheap and never raise.
    """

    name: ClassVar[str]
    kind: ClassVar[EngineKind]
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        self.options = options
        self.spawn = spawn
        self.tell: Callable[[WorkerEvent], None] = _nobody
        self.computed: Callable[[Reply], None] = _nobody

    @abstractmethod
    async def start(self) -> None:
        """Load. Raises UserError for what a user can mend, anything else is a crash."""

    @abstractmethod
    def card(self) -> ModelCard:
        """The card to publish, valid after `start`."""

    @abstractmethod
    def submit(self, request: Generate | Chat, reply: Reply) -> None:
        """Begin to work on a request. Must not block; what goes wrong later is told by `reply.failed`."""

    @abstractmethod
    def statistics(self) -> EngineStatistics:
        """Load and totals."""

    def load(self) -> Load:
        """The engine's own count, for routers. Asked a few times a second while somebody reads the feed."""
        now = self.statistics()
        return Load(now.running, now.waiting, 0, 0, 0.0)

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        """All that a new reader of the feed must know: what is in the KV cache, and the load."""
        return (self.load(),)

    def footprint(self, request: Generate | Chat) -> tuple[tuple[int, ...], int] | None:
        """What a request costs this engine: sequence hashes of its prompt's full blocks, prompt tokens not cached now.

        None: the engine cannot tell. Called just before `submit` of the same request.
        """
        return None

    async def close(self) -> None:
        """Free everything. Streams that are open have been cancelled or finished before."""
        return


@dataclass(frozen=True, slots=True)
class Job:
    """A worker's mail: a request and where its answer goes."""

    request: Request
    reply: Reply

    def undeliverable(self, why: str) -> None:
        """The worker ends or drains before it read this: the sender may try elsewhere (called by the kernel)."""
        self.reply.failed("Overloaded", why, retry=True)
