"""What such engines have in common: requests as tasks, blocks and load as routers see them, a start that is shown."""

import contextlib
import gc
import hashlib
import logging
import os
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar, TypeVar

import msgspec

from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens, vectors
from dynamod.message.errors import BadRequest, EngineFailed, RequestError, UserError
from dynamod.message.kv_events import Load, Snapshot, TierStored, WorkerEvent
from dynamod.message.worker import Embed, Generate
from dynamod.preprocess.conditions import check_token_ids
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineRequest, Spawn, answer_limit
from ..batching.engine import BatchingStatistics
from ..batching.steps import milliseconds
from ..capabilities import implemented
from ..own_transfer import OwnTransfer
from .arguments import listened
from .blocks import EngineBlocks
from .counts import EngineCounts
from .processes import EngineEnded, EngineProcesses
from .requests import OpenRequests
from .subscription import Subscription
from .tiers import HostTier
from .tracker import keep_tracker_apart

log = logging.getLogger("dynamod.engine")
T = TypeVar("T")

USUAL_START = "half a minute is normal, three minutes on a busy CPU; large models take longer"
SHORT = 60
"""Bytes of a folder in which engines can open sockets with long names."""


class AdapterEngine(Engine[Generate]):
    """`load_engine` calls `processes.stage` for what takes long, sets `block_size`, `room` (tokens of a prompt and its
    answer together), `counts.total_blocks` and `vocabulary`, and calls `serve_blocks` if there are events. `counts`:
    reports of the engine. `open`: its requests. `host_tier`: the host's memory, where the engine has such a tier.
    `product`: the engine's name as it is written. An engine of vectors sets `embedding_length`, and has `vectors_of`.
    """

    serves: tuple[type[EngineRequest], ...] = (Generate,)
    embedding_length = 0
    own_transfer: OwnTransfer | None = None  # set by `load_engine` where the engine moves KV blocks
    product: ClassVar[str]

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.blocks: EngineBlocks | None = None
        self.host_tier: HostTier | None = None
        self.counts, self.open = EngineCounts(), OpenRequests()
        self.block_size = self.room = self.vocabulary = 0
        self.can = self.capabilities  # as it has been started
        self.processes = EngineProcesses(self.name, self.product)

    async def start(self) -> None:
        """Load. Raises UserError with the engine's own reason for what it refuses."""
        self._card = await self._model_card()
        sockets = self.options.sockets
        wanted = self.environment()
        if sockets is not None and len(os.fsencode(sockets)) < SHORT:
            wanted["TORCHINDUCTOR_CACHE_DIR"] = f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"  # stays
            wanted["TMPDIR"] = str(sockets)
        for name, value in wanted.items():
            os.environ.setdefault(name, value)
        keep_tracker_apart()
        output = self.processes.read_output(self.progress)
        log.info("%s starts: %s", self.product, USUAL_START)
        try:
            await self.load_engine()
        except UserError:
            raise
        except Exception as error:
            log.debug("%s does not start", self.product, exc_info=error)
            problem = f"{self.product} cannot serve {self.options.path}: {await self.processes.why(error)}"
            raise UserError(problem, "the worker's log has more") from None
        finally:
            output.close()
        if self.embedding_length:
            self.serves = (Embed,)
        gc.collect()  # an engine has made a million objects: to look at them later would stop the first answers
        gc.freeze()
        self._card = msgspec.structs.replace(
            self._card,
            context_length=self.room,
            kv_cache_block_size=self.block_size or self._card.kv_cache_block_size,
            types=("embeddings", "score") if self.embedding_length else self._card.types,
            embedding_length=self.embedding_length,
            capabilities=implemented(self, msgspec.structs.replace(self.can, kv_events=self.blocks is not None)),
        )

    def environment(self) -> dict[str, str]:
        """Variables for the engine and its processes, where the user has set none."""
        return {}

    @abstractmethod
    async def load_engine(self) -> None:
        """Import and load it. Whatever it raises is said with the reason in what its processes have printed."""

    def socket_prefix(self) -> str:
        """Beginning of the paths of sockets for events: short, as such paths are limited."""
        folder = self.options.sockets or tempfile.mkdtemp(prefix=f"dynamod-{self.name}-")
        return f"{folder}/{hashlib.blake2b(f'{os.getpid()}'.encode(), digest_size=4).hexdigest()}"

    def serve_blocks(self, endpoint: str | None, replay: str | None, ranks: int) -> None:
        """Listen to the KV events of all ranks: where the first publishes, and where it repeats what was lost."""
        found = [(listened(endpoint, rank), listened(replay, rank)) for rank in range(ranks)]
        if any(where is None for where, _ in found):
            log.warning("%s publishes its KV events elsewhere (%s): routers get none", self.product, endpoint)
            return
        blocks = self.blocks = EngineBlocks(self.block_size, self.publish)
        for rank, (where, again) in enumerate(found):
            assert where is not None
            listen = Subscription(where, again, partial(blocks.apply, rank), partial(blocks.forget, rank))
            self.spawn(listen.run(), f"KV events {rank}")

    def submit(self, request: Generate | Embed, reply: Reply) -> None:
        """Start a task for the request; its end is the end of the answer. Raises BadRequest."""
        if isinstance(request, Embed):
            embedding = self.spawn(self._embed(request, reply), f"vectors {request.request_id}")
            reply.on_cancel(embedding.cancel)
            return
        limit = answer_limit(request, self.room)
        if tokens.count(request.prior_output) >= limit:
            reply.tokens(b"", 0, "length")
            return
        task = self.spawn(self._answer(request, reply, limit), f"request {request.request_id}")
        reply.on_cancel(task.cancel)

    async def _answer(self, request: Generate, reply: Reply, limit: int) -> None:
        self.open.answers[reply] = tokens.count(request.token_ids) + tokens.count(request.prior_output)
        try:
            with self._worked_on(request, reply):
                await self.generate(request, reply, limit)
        finally:
            del self.open.answers[reply]

    async def _embed(self, request: Embed, reply: Reply) -> None:
        with self._worked_on(request, reply):
            found = await self.vectors_of(request, [self.checked(ids) for ids in request.inputs])
            try:
                packed = tuple([vectors.pack(vectors.unit(one)) for one in found])
            except ValueError as error:
                raise EngineFailed(f"{self.product} made {error}") from None
            reply.items(packed, "stop")

    @contextlib.contextmanager
    def _worked_on(self, request: Generate | Embed, reply: Reply) -> Iterator[None]:
        """What is raised ends the request alone, unless the engine has ended."""
        try:
            with self.open.one():
                yield
        except RequestError as error:
            reply.raised(error)
        except EngineEnded:
            raise
        except Exception as error:
            log.warning("%s: request %s failed", self.name, request.request_id, exc_info=error)
            reply.failed("EngineFailed", f"{self.name}: {type(error).__name__}: {error}")

    @abstractmethod
    async def generate(self, request: Generate, reply: Reply, limit: int) -> None:
        """Answer a request with up to `limit` tokens, those of other instances too; cancelled: free its slot.

        Raises RequestError; EngineEnded when the engine's processes have ended.
        """

    async def vectors_of(self, request: Embed, inputs: Sequence[list[int]]) -> Sequence[Sequence[float]]:
        """The vectors of the texts of a request, of any length but 0; cancelled: free their slots.

        Raises RequestError; EngineEnded when the engine's processes have ended.
        """
        raise EngineFailed(f"{self.product} makes no vectors here")

    def prompt(self, request: Generate) -> list[int]:
        """Token ids to compute; those of other instances count as prompt. Raises BadRequest."""
        return self.checked(request.token_ids + request.prior_output)

    def checked(self, packed: bytes) -> list[int]:
        """Token ids that the model knows. Raises BadRequest."""
        try:
            ids = list(tokens.unpack(packed))
        except ValueError:
            raise BadRequest("the token ids cannot be read") from None
        check_token_ids(ids, "token_ids", self.vocabulary)
        return ids

    def begun(self, request: Generate, reply: Reply, cached: int | None) -> None:
        """The first tokens of an answer come; so many of its prompt were in the engine's cache. None: not known."""
        self.prefill_completed(reply)
        if cached is not None and cached >= 0:
            reply.cached_tokens(min(cached, tokens.count(request.token_ids)))

    def send(self, reply: Reply, ids: Sequence[int], finish: str | None) -> None:
        """New tokens of an answer, at most once per step. The hot path."""
        self.counts.tokens += len(ids)
        reply.tokens(tokens.pack(ids), len(ids), finish)

    def footprint(self, request: Generate) -> tuple[tuple[int, ...], int] | None:
        """By the blocks that the engine has reported. Ids that another instance has made count as prompt."""
        if self.blocks is None:
            return None
        ids = request.token_ids + request.prior_output
        found = block_hashes(ids, self.blocks.block_size, request.salt)
        return tuple(found), self.blocks.uncached(found, tokens.count(ids))

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        """The blocks of all ranks, named by their sequence hashes, and the load."""
        blocks = self.blocks
        if blocks is None:
            return (self.load(),)
        host = [TierStored("CPU_PINNED", blocks.host.names)] if blocks.host else []
        return (Snapshot(blocks.names, blocks.names), *host, self.load())

    def load(self) -> Load:
        """The engine reports when it steps; what is open here is known at once."""
        waiting = min(self.counts.queued, self.open.count)
        active = min(self.counts.used_blocks, self.counts.total_blocks) if self.open.count else 0
        tier, blocks = self.host_tier, self.blocks
        return Load(
            running=self.open.count - waiting,
            waiting=waiting,
            active_blocks=active,
            total_blocks=self.counts.total_blocks,
            hit_rate=self.counts.hits / max(1, self.counts.queried),
            prefill_ms=milliseconds(self.counts.prompt_rate.takes(self.block_size)),
            host_ms=milliseconds(tier.load_seconds_of(blocks.host)) if tier and blocks else 0.0,
        )

    def statistics(self) -> BatchingStatistics:
        """With the blocks that are kept for later. Steps happen in other processes: since when is not known."""
        load = self.load()
        cached = len(self.blocks.device) - load.active_blocks if self.blocks is not None else 0
        return BatchingStatistics(
            **msgspec.structs.asdict(load),
            tokens=self.counts.tokens,
            steps=self.counts.steps,
            cached_blocks=max(0, cached),
            preemptions=self.counts.preemptions,
            host_tier=self.host_tier.statistics(self.blocks.host) if self.host_tier and self.blocks else None,
        )
