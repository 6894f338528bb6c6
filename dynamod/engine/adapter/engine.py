"""What such engines have in common: requests as tasks, blocks and load as routers see them, a start that is shown."""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import DynamodError, RequestError
from dynamod.message.kv_events import Load, Snapshot, WorkerEvent
from dynamod.message.worker import Generate
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, Spawn, answer_limit
from ..batching.engine import BatchingStatistics
from .apart import apart
from .blocks import EngineBlocks
from .subscription import Subscription

log = logging.getLogger("dynamod.engine")
T = TypeVar("T")

SAID = 10.0
"""Seconds between two log lines about the same stage of the start."""


class EngineEnded(DynamodError):
    """The engine's processes have ended: the worker ends too, and its supervisor starts it again."""


class AdapterEngine(Engine[Generate]):
    """`start` calls `stage` for what takes long, then `serve_blocks` if there are events, and sets `room` (tokens of a
    prompt and its answer together) and `total_blocks`. `queued`, `used_blocks`, `queried` and `hits` (tokens, for the
    prefix cache) are what the engine reports; `steps` counts its steps.
    """

    serves = (Generate,)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.blocks: EngineBlocks | None = None
        self.room = self.total_blocks = self.used_blocks = 0
        self.tokens = self.steps = self.queued = self.queried = self.hits = self.preemptions = 0
        self._open = 0

    async def stage(self, what: str, work: Callable[[], T]) -> T:
        """Do a part of the start in a thread; say what it is, and since when."""
        began, future = time.monotonic(), apart(work, self.name)
        self.progress(f"{self.name} {what}, since {time.strftime('%H:%M:%S')}")
        while not (await asyncio.wait([future], timeout=SAID))[0]:
            log.info("%s %s, for %.0f s", self.name, what, time.monotonic() - began)
        return future.result()

    def serve_blocks(self, block_size: int, endpoints: Sequence[tuple[str, str | None]]) -> None:
        """Listen to the KV events of all ranks: where each publishes, and where it repeats what was lost."""
        blocks = self.blocks = EngineBlocks(block_size, self.publish)
        for rank, (endpoint, replay) in enumerate(endpoints):
            listen = Subscription(endpoint, replay, partial(blocks.apply, rank), partial(blocks.forget, rank))
            self.spawn(listen.run(), f"KV events {rank}")

    def described(self, card: ModelCard, block_size: int) -> ModelCard:
        """The card with what the engine has made of it: its room and its blocks."""
        return msgspec.structs.replace(
            card,
            context_length=self.room,
            kv_cache_block_size=block_size,
            capabilities=msgspec.structs.replace(self.capabilities, kv_events=self.blocks is not None),
        )

    def submit(self, request: Generate, reply: Reply) -> None:
        """Start a task for the request; its end is the end of the answer. Raises BadRequest."""
        limit = answer_limit(request, self.room)
        if tokens.count(request.prior_output) >= limit:
            reply.tokens(b"", 0, "length")
            return
        task = self.spawn(self._answer(request, reply, limit), f"request {request.request_id}")
        reply.on_cancel(task.cancel)

    async def _answer(self, request: Generate, reply: Reply, limit: int) -> None:
        self._open += 1
        try:
            await self.generate(request, reply, limit)
        except RequestError as error:
            reply.raised(error)
        except EngineEnded:
            raise
        except Exception as error:
            log.warning("%s: request %s failed", self.name, request.request_id, exc_info=error)
            reply.failed("EngineFailed", f"{self.name}: {type(error).__name__}: {error}")
        finally:
            self._open -= 1

    @abstractmethod
    async def generate(self, request: Generate, reply: Reply, limit: int) -> None:
        """Answer a request with up to `limit` tokens, those of other instances too; cancelled: free its slot.

        Raises RequestError; EngineEnded when the engine's processes have ended.
        """

    def send(self, reply: Reply, ids: Sequence[int], finish: str | None, *, first: bool) -> None:
        """New tokens of an answer, at most once per step. The hot path."""
        self.tokens += len(ids)
        if first:
            self.prefill_completed(reply)
        reply.tokens(tokens.pack(ids), len(ids), finish)

    def footprint(self, request: Generate) -> tuple[tuple[int, ...], int] | None:
        """By the blocks that the engine has reported. Ids that another instance has made count as prompt."""
        if self.blocks is None:
            return None
        ids = request.token_ids + request.prior_output
        found = block_hashes(ids, self.blocks.block_size)
        return tuple(found), self.blocks.uncached(found, tokens.count(ids))

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        """The blocks of all ranks, named by their sequence hashes, and the load."""
        names = self.blocks.names if self.blocks is not None else ()
        return (*([Snapshot(names, names)] if self.blocks is not None else []), self.load())

    def load(self) -> Load:
        """The engine reports when it steps; what is open here is known at once."""
        waiting = min(self.queued, self._open)
        active = min(self.used_blocks, self.total_blocks) if self._open else 0
        return Load(self._open - waiting, waiting, active, self.total_blocks, self.hits / max(1, self.queried))

    def statistics(self) -> BatchingStatistics:
        """With the blocks that are kept for later. Steps happen in other processes: since when is not known."""
        load = self.load()
        cached = len(self.blocks.names) - load.active_blocks if self.blocks is not None else 0
        return BatchingStatistics(
            **msgspec.structs.asdict(load),
            tokens=self.tokens,
            steps=self.steps,
            cached_blocks=max(0, cached),
            preemptions=self.preemptions,
        )
