"""What some engines can do and others cannot: a protocol for each capability, and the card's flags that follow from it.

An engine without a capability has no method for it. The worker and its parts ask for protocols when the engine has
been started, not with each request.
"""

from collections.abc import Callable, Collection
from typing import Literal, Protocol, runtime_checkable

import msgspec

from dynamod.message.discovery import Capabilities
from dynamod.message.kv_events import ForwardPass, WorkerEvent
from dynamod.message.worker import Generate, Grammar
from dynamod.transport.base import Reply

from .adapters import AdapterManager
from .batching.handoff import AskRoom, Done, Held, Put, unlimited
from .own_transfer import OwnTransfer

Exported = Literal["prompts", "stored"]
"""KV blocks that an engine gives to other workers: of prompts that it computes for them, and blocks that it has."""


@runtime_checkable
class CompilesGrammars(Protocol):
    """The sampler of the engine follows grammars. A grammar is compiled before its request is submitted."""

    def prepared(self, grammar: Grammar) -> bool:
        """Whether a request with that grammar may be submitted now."""
        ...

    async def prepare(self, grammar: Grammar) -> None:
        """Compile a grammar, which takes too long for `Engine.submit`. Raises RequestError."""


@runtime_checkable
class LoadsAdapters(Protocol):
    """The engine loads and unloads LoRA adapters while it runs. Flag: `lora`."""

    @property
    def adapters(self) -> AdapterManager | None:
        """None: as the engine has been started, it loads no adapters."""
        ...


@runtime_checkable
class ReportsBlocks(Protocol):
    """The engine names the KV blocks of requests, and may report the blocks of its cache. Flag: `kv_events`."""

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        """The events that a new subscriber needs: the blocks in the KV cache, and the load."""
        ...

    def footprint(self, request: Generate) -> tuple[tuple[int, ...], int] | None:
        """Sequence hashes of a prompt's full blocks, and the number of prompt tokens that are not cached now.

        None: the engine cannot tell. Called just before `submit` of the same request.
        """
        ...


@runtime_checkable
class ReportsSteps(Protocol):
    """The engine describes its steps, and calls `Engine.stepped` where that is set."""

    def forward_pass(self, rank: int) -> ForwardPass | None:
        """The step that a rank computes now, with `wall_time` 0 (seconds) when the rank is idle.

        None: there is no such rank, or the engine does not know its steps.
        """
        ...


@runtime_checkable
class MovesBlocks(Protocol):
    """Instances of the engine send each other the KV blocks of prompts; the worker takes no part. Flag: `handoff`."""

    @property
    def own_transfer(self) -> OwnTransfer | None:
        """None: as the engine has been started, it moves no blocks."""
        ...


@runtime_checkable
class HandsOffBlocks(Protocol):
    """The engine gives KV blocks to other workers and takes theirs; the worker moves the bytes.

    `exports`: empty where the engine, as it has been started, gives and takes none. Flags: `handoff`, `stored_blocks`,
    `role_switch`. `block_size`: tokens of a block. `peer_seconds`, `move_seconds`: set by the worker, seconds of a
    block from another worker, and see `Load.move_ms`; 0: not known.
    """

    exports: Collection[Exported]
    block_size: int
    peer_seconds: float
    move_seconds: float

    def layout(self) -> str:
        """Digest of all that must agree for the bytes of a block to mean the same: weights, types, block size."""
        ...

    def export(self, request: Generate, put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """Compute the full blocks of a prompt and put them; returns a function that cancels."""
        ...

    def export_stored(self, request: Generate, put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """Put the first blocks of a prompt, as far as the engine has them; returns a function that cancels."""
        ...

    def adopt(self, request: Generate, reply: Reply) -> Held | None:
        """As `Engine.submit`, with blocks of the prompt still to come; None when there is nothing to compute."""
        ...

    def footprint(self, request: Generate) -> tuple[tuple[int, ...], int]:
        """As of `ReportsBlocks`."""
        ...

    def block_times(self) -> tuple[float, float, float]:
        """Seconds of a block: to compute it, to load it from memory of the host, from files; 0: not known."""
        ...


def implemented(engine: object, declared: Capabilities) -> Capabilities:
    """The capabilities on the card of an engine: the declared ones, and the flags of what the engine implements.

    An engine whose card is made here declares none of `lora`, `handoff`, `stored_blocks` and `role_switch`: they are
    read from its objects, as it has been started. `kv_events` and `needs_prefill` are declared, and need a protocol.
    """
    moves = isinstance(engine, MovesBlocks) and engine.own_transfer is not None
    exports = engine.exports if isinstance(engine, HandsOffBlocks) else ()
    return msgspec.structs.replace(
        declared,
        kv_events=declared.kv_events and isinstance(engine, ReportsBlocks),
        lora=isinstance(engine, LoadsAdapters) and engine.adapters is not None,
        handoff=moves or "prompts" in exports,
        needs_prefill=declared.needs_prefill and moves,
        stored_blocks="stored" in exports,
        role_switch="prompts" in exports,
    )
