"""The engine `llamacpp`: steps that the scheduler decides on the event loop and one thread computes."""

import asyncio
import dataclasses
import functools
import logging
import threading
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor

import msgspec

from dynamod.kvcache.hashes import chain, local_hashes
from dynamod.message import tokens
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.errors import BadRequest
from dynamod.message.kv_events import Load, Removed, Snapshot, Stored, WorkerEvent
from dynamod.message.worker import Chat, Generate
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, Spawn
from ..cards import card_of
from .arguments import LlamaCppArguments, arguments_of
from .files import gguf_file
from .kv_cells import Cells
from .model import Model, Operation, StepFailed, Work
from .request import read
from .sampling import Picked, Sampler
from .scheduler import Row, Scheduler
from .sequence import Sequence
from .step_budget import StepBudget
from .stream import Stream

log = logging.getLogger("dynamod.engine")

CLOSE = 3.0
"""Seconds that `close` waits for the step that is being computed; a thread that hangs is left behind."""


class LlamaCppStatistics(EngineStatistics, frozen=True):
    """With the KV cache. Blocks: all, in use, kept for later. `computed_total`: tokens computed,
    of prompts and answers.

    `hit_rate`: share of admitted tokens found in the cache.
    """

    total_blocks: int = 0
    active_blocks: int = 0
    cached_blocks: int = 0
    hit_rate: float = 0.0
    preemptions: int = 0
    computed_total: int = 0


class _Operations:
    """What is to happen to the cells before the next step (`cells.Memory`)."""

    def __init__(self) -> None:
        self._list: list[Operation] = []

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """See Memory."""
        self._list.append((source, target, start, end))

    def remove(self, slot: int, start: int, end: int) -> None:
        """See Memory."""
        self._list.append((-1, slot, start, end))

    def take(self) -> list[Operation]:
        """All that has gathered."""
        taken, self._list = self._list, []
        return taken


class LlamaCpp(Engine):
    """GGUF models by llama.cpp, many sequences at a time in one context."""

    name = "llamacpp"
    kind = "tokens"
    capabilities = Capabilities(
        exact_continuation=True, kv_events=True, logprobs=True, seed=True, min_tokens=True, logit_bias=True
    )

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.arguments: LlamaCppArguments = arguments_of(options.arguments, options.kv_cache_block_size)
        self._work = asyncio.Event()
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llamacpp")
        self._operations = _Operations()
        self._now = asyncio.get_running_loop().time
        self._since: float | None = None
        self._step_tokens = self._tokens = self._steps = self._computed = 0
        self._hashed: tuple[Generate, list[int], list[int]] | None = None
        self._model: Model | None = None

    async def start(self) -> None:
        """Read the card, load in the thread, compute a first few tokens. Raises UserError."""
        assert self.options.path is not None
        arguments, options = self.arguments, dataclasses.replace(self.options, path=gguf_file(self.options.path))
        card = await self._card_of(options)
        log.info("llama.cpp loads %s", options.path)
        rate = await asyncio.wrap_future(self._thread.submit(self._load, options))
        model = self._model
        assert model is not None
        caching = arguments.enable_prefix_caching and model.shares
        if not card.context_length or model.context_length < card.context_length:
            log.warning("llama.cpp: the context is cut to the %d KV cells there are", model.context_length)
            card = await self._card_of(dataclasses.replace(options, context_length=model.context_length))
        self._card = msgspec.structs.replace(
            card, capabilities=msgspec.structs.replace(self.capabilities, kv_events=caching)
        )
        self._cells = Cells(
            self._operations,
            blocks=model.cells // arguments.block_size,
            size=arguments.block_size,
            slots=model.slots,
            caching=caching,
            tell=self._told,
        )
        self._scheduler = Scheduler(
            self._cells,
            max_num_seqs=arguments.max_num_seqs,
            max_num_batched_tokens=arguments.max_num_batched_tokens,
        )
        self._step_budget = StepBudget(arguments.step_seconds, arguments.block_size, arguments.max_num_batched_tokens)
        self._step_budget.rate = rate
        self._most = min(model.context_length, model.cells // arguments.block_size * arguments.block_size)
        self.spawn(self._run(model), "steps")

    async def _card_of(self, options: EngineOptions) -> ModelCard:
        return await card_of(
            options,
            kv_cache_block_size=self.arguments.block_size,
            engine=self.name,
            migration_limit=self.options.migration_limit,
        )

    def _load(self, options: EngineOptions) -> float:
        """In the thread: load and try; returns the tokens per second of that."""
        assert options.path is not None
        model = self._model = Model(
            options.path, self.arguments, options.context_length, lambda: not self._stopped.is_set()
        )
        return model.warm()

    def card(self) -> ModelCard:
        """See Engine."""
        return self._card

    def submit(self, request: Generate | Chat, reply: Reply) -> None:
        """Queue a request. One whose prompt can never fit is refused; an answer ends where the cells or context do."""
        assert isinstance(request, Generate)
        assert self._model is not None
        vocabulary = self._model.vocabulary
        try:
            asked = read(request, vocabulary, self._most)
        except BadRequest as error:
            reply.failed("BadRequest", str(error), code=error.code)
            return
        prompt, prior, whole = asked.prompt, asked.prior, asked.whole
        if len(prior) >= whole:
            reply.tokens(b"", 0, "length")
            return
        sampler = Sampler(
            request.sampling,
            vocabulary,
            seed=asked.seed,
            prompt=prompt,
            output=prior,
            forbidden=asked.ends,
            min_tokens=request.stops.min_tokens or 0,
        )
        sequence = Sequence(None, [*prompt, *prior], self.arguments.block_size)
        sequence.known(*self._hashes(request))
        sequence.owner = Stream(request, reply, sampler, sequence, asked)
        self._scheduler.add(sequence)
        self._work.set()
        reply.on_cancel(functools.partial(self._scheduler.remove, sequence))

    async def close(self) -> None:
        """End the step that is being computed, or the loading, and give all memory back."""
        self._stopped.set()
        self._work.set()
        freed = self._thread.submit(self._free)
        self._thread.shutdown(wait=False)
        try:
            async with asyncio.timeout(CLOSE):
                await asyncio.wrap_future(freed)
        except TimeoutError:
            log.warning("llama.cpp: the thread that computes does not end")

    def _free(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            model.free()

    # Steps.

    async def _run(self, model: Model) -> None:
        scheduler, step_budget, now = self._scheduler, self._step_budget, self._now
        while True:
            if scheduler.idle:
                self._work.clear()
                await self._work.wait()
            if self._stopped.is_set():
                return
            if scheduler.idle:
                continue
            rows = scheduler.plan(step_budget.chunk(scheduler.decoding))
            work = [_work(row) for row in rows]
            self._since, self._step_tokens = began, count = now(), sum([row.count for row in rows])
            try:
                picked = await asyncio.wrap_future(self._thread.submit(model.step, self._operations.take(), work))
            except Exception as error:
                self._failed(rows, error)
                continue
            finally:
                self._since = None
            self._steps += 1
            self._computed += count
            step_budget.took(sum([row.count for row in rows if row.count > 1]), now() - began)
            scheduler.commit(rows)
            self._hand_out([row for row in rows if row.last], picked)

    def _failed(self, rows: Seq[Row], error: Exception) -> None:
        """A step could not be computed: who is at fault alone ends, the others are computed again."""
        if isinstance(error, StepFailed):
            log.warning("%s (%d sequences)", error, len(rows))
        else:
            log.error("llama.cpp: a step failed", exc_info=error)
        for sequence in self._scheduler.failed(list(rows)):
            stream: Stream = sequence.owner
            stream.reply.failed("EngineFailed", str(error) or type(error).__name__)

    def _hand_out(self, rows: list[Row], picked: list[Picked | Exception]) -> None:
        """The hot loop: once per token."""
        for row, one in zip(rows, picked, strict=True):
            sequence = row.sequence
            if sequence.gone:  # its reader has left while this was computed
                continue
            stream: Stream = sequence.owner
            if isinstance(one, Exception):
                log.warning("llama.cpp: request %s failed: %s", stream.request.request_id, one)
                self._scheduler.remove(sequence)
                stream.reply.failed("EngineFailed", f"llamacpp: {one}")
                continue
            self._tokens += 1
            first, finish = stream.take(one)
            if first:
                self.computed(stream.reply)
            if finish is not None:
                self._scheduler.remove(sequence)
            stream.send(one, finish)

    # What others are told.

    def _told(self, item: Stored | Removed) -> None:
        self.tell(item)

    def _hashes(self, request: Generate) -> tuple[list[int], list[int]]:
        """Local and sequence hashes of a prompt; `footprint` has asked for those of the same request just before."""
        hashed, self._hashed = self._hashed, None
        if hashed is not None and hashed[0] is request:
            return hashed[1], hashed[2]
        if not self._cells.caching:
            return [], []
        local = local_hashes(request.token_ids + request.prior_output, self.arguments.block_size)
        return local, chain(local)

    def footprint(self, request: Generate | Chat) -> tuple[tuple[int, ...], int] | None:
        """See Engine. Ids that another instance has made count as prompt: they have to be computed."""
        assert isinstance(request, Generate)
        local, names = self._hashes(request)
        self._hashed = request, local, names
        length = tokens.count(request.token_ids) + tokens.count(request.prior_output)
        return tuple(names), length - self._cells.prefix(names, length) * self.arguments.block_size

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        """See Engine. A block's name is its sequence hash."""
        names = tuple(self._cells.pool.names())
        return Snapshot(names, names), self.load()

    def load(self) -> Load:
        """See Engine."""
        scheduler, pool = self._scheduler, self._cells.pool
        rate = scheduler.cached_tokens / max(1, scheduler.prompt_tokens)
        return Load(len(scheduler.running), len(scheduler.waiting), pool.active, pool.capacity, rate)

    def statistics(self) -> LlamaCppStatistics:
        """See Engine."""
        if not hasattr(self, "_scheduler"):
            return LlamaCppStatistics()
        load = self.load()
        return LlamaCppStatistics(
            running=load.running,
            waiting=load.waiting,
            tokens=self._tokens,
            steps=self._steps,
            in_step_for=None if self._since is None else self._now() - self._since,
            step_tokens=self._step_tokens,
            total_blocks=load.total_blocks,
            active_blocks=load.active_blocks,
            cached_blocks=self._cells.pool.statistics().cached,
            hit_rate=load.hit_rate,
            preemptions=self._scheduler.preemptions,
            computed_total=self._computed,
        )


def _work(row: Row) -> Work:
    """What the thread needs to know: it does not look at sequences, which the loop may end meanwhile."""
    sequence, start = row.sequence, row.start
    sampler = sequence.owner.sampler if row.last else None
    return Work(sequence.slot, start, sequence.ids[start : start + row.count], sampler)
