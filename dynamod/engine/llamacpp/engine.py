"""The engine `llamacpp`: steps that the scheduler decides on the event loop and one thread computes."""

import asyncio
import functools
import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import msgspec

from dynamod.actor.threads import last_work
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.discovery import Adapter, Capabilities, ModelCard
from dynamod.message.errors import BadRequest, RequestError, UserError
from dynamod.message.kv_events import Load
from dynamod.message.worker import MATCHED, Generate
from dynamod.preprocess.gguf_file import read_metadata
from dynamod.preprocess.source import open_card
from dynamod.transport.base import Reply

from ..adapters import AdapterManager
from ..base import EngineOptions, Spawn
from ..batching.engine import BatchingEngine
from ..batching.handoff import AskRoom, Done, Held, Put, unlimited
from ..batching.steps import Chunk
from ..capabilities import Exported
from ..lora import digested
from ..step_clock import StepClock
from .adapter_store import LlamaCppAdapters
from .agreed import Agreement
from .arguments import LlamaCppArguments, arguments_of
from .files import gguf_file
from .handoff import Export, HeldRequest, Shared, Totals
from .kv_cells import Cells, Sequence
from .lora import check as check_adapters
from .model import Model
from .request import Stream, exportable
from .scheduler import Scheduler
from .scores import Scores
from .sizing import StepBudget
from .state_handoff import HeldState, StateExport
from .statistics import LlamaCppStatistics
from .steps import Steps

log = logging.getLogger("dynamod.engine")

CLOSE = 3.0
"""Seconds that `close` waits for the step that is being computed; a thread that hangs is given up."""


class LlamaCpp(BatchingEngine):
    """GGUF models by llama.cpp, many sequences at a time in one context."""

    name = "llamacpp"
    capabilities = Capabilities(
        exact_continuation=True,
        kv_events=True,
        logprobs=True,
        seed=True,
        min_tokens=True,
        logit_bias=True,
        grammars=True,
        forms=MATCHED,
        prompt_logprobs=True,
    )

    adapters: AdapterManager | None = None

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        self.arguments: LlamaCppArguments = arguments_of(options.arguments, options.kv_cache_block_size)
        super().__init__(options, spawn, self.arguments.block_size)
        self._totals = Totals()
        budget = StepBudget(self.arguments.step_seconds, self.block_size, self.arguments.max_num_batched_tokens)
        self._steps = Steps(self, budget)
        self._whole = False  # the state of a prompt is handed off instead of its blocks
        self._model: Model | None = None

    async def start(self) -> None:
        """Read the card, load in the thread, compute a first few tokens. Raises UserError."""
        assert self.options.path is not None
        arguments, path = self.arguments, gguf_file(self.options.path)
        _held = await asyncio.to_thread(read_metadata, path)  # else the file would be read for each of what follows
        card = await self._file_card(path)
        log.info("llama.cpp loads %s", path)
        await asyncio.to_thread(check_adapters, self.options.lora, path)
        adapters = [await asyncio.to_thread(digested, one) for one in self.options.lora]
        warms = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, self.phase, "warm-up")
        agreed = await asyncio.to_thread(Agreement, path, card)
        loading = asyncio.wrap_future(self._steps.thread.submit(self._load, path, adapters, warms))
        rate, tokenizer = await asyncio.gather(loading, asyncio.to_thread(_unchecked, agreed, card))
        model = self._model
        assert model is not None
        if tokenizer is not None and await asyncio.to_thread(model.vocabulary.compare, tokenizer):
            agreed.remember()
        self.caching = arguments.enable_prefix_caching and model.shares
        if arguments.stretch > 1:
            card = msgspec.structs.replace(card, context_length=model.context_length)
        elif not card.context_length or model.context_length < card.context_length:
            log.warning("llama.cpp: the context is cut to the %d KV cells there are", model.context_length)
            card = await self._model_card(path, context_length=model.context_length)
        ends = tuple(dict.fromkeys((*card.eos_token_ids, *model.vocabulary.ends)))
        self._whole = model.states is not None
        by_block: Seq[Exported] = ("prompts", "stored") if model.ranges is not None else ()
        self.exports = by_block or (("prompts",) if self._whole else ())
        store = LlamaCppAdapters(
            self._steps,
            path,
            adapters,
            model=lambda: self._model,
            listed=lambda: self._card.adapters,
            spawn=self.spawn,
        )
        self.adapters = AdapterManager(self, store)
        card = msgspec.structs.replace(card, eos_token_ids=ends, adapters=tuple(adapters))
        self._card = self.described(card)
        self._cells = Cells(
            self._steps.operations.append,
            blocks=model.cells // self.block_size,
            size=self.block_size,
            slots=model.slots,
            caching=self.caching,
            idle=arguments.idle_tokens // self.block_size,
            publish=self._steps.published,
        )
        steps, scheduler = self._steps, Scheduler(self._cells, arguments.max_num_seqs, arguments.max_num_batched_tokens)
        steps.scheduler, scheduler.adapters = scheduler, bool(adapters)
        operate, wake = steps.operations.append, steps.work.set
        self._shared = Shared(scheduler, self._cells, steps.transfer, operate, wake, self._totals, model.export_bytes)
        self.schedulers, self.clocks = [scheduler], [StepClock()]
        steps.budget.guess(rate)
        self.room = min(model.context_length, model.cells // self.block_size * self.block_size)
        self.tiers = await steps.open_tiers(model, self._shared)
        self.spawn(steps.run(model), "steps")

    async def _file_card(self, path: Path) -> ModelCard:
        """The card of the file. Raises UserError, also for a context that is too long."""
        wanted, stretch = self.options.context_length, self.arguments.stretch
        if stretch == 1:
            return await self._model_card(path)
        card = await self._model_card(path, context_length=None)
        if wanted is not None and card.context_length and wanted > card.context_length * stretch:
            known = f"{card.context_length}, {stretch:g} times as long by rope_scale"
            raise UserError(f"context length {wanted} is larger than the model's {known}", "give a smaller one")
        return card

    def _load(self, path: Path, adapters: Seq[Adapter], warms: Callable[[], object]) -> float:
        """In the thread: load and, after `warms`, try; returns the tokens per second of that."""
        context = self.options.context_length
        model = self._model = Model(path, self.arguments, context, lambda: not self._steps.stopped.is_set(), adapters)
        warms()
        return model.warm()

    def queue(self, request: Generate, reply: Reply, limit: int) -> Callable[[], object]:
        """Have a request computed. Raises BadRequest for ids that the model does not know, NotFound for an adapter."""
        sequence = self._sequence(request, reply, limit)
        self._steps.scheduler.add(sequence)
        self._steps.work.set()
        return functools.partial(self._steps.scheduler.remove, sequence)

    def _sequence(self, request: Generate, reply: Reply, limit: int) -> Sequence:
        assert self._model is not None
        assert self.adapters is not None
        self.adapters.require(request)
        matcher = self.grammars().matcher(request.grammar) if request.grammar is not None else None
        stream = Stream(request, reply, self._model.vocabulary.size, limit, matcher)
        ids = tokens.unpack(request.token_ids + request.prior_output)
        singly = tokens.count(request.token_ids) if self.arguments.stepwise_continuation else 0
        split = _split(self._whole, self.block_size, singly or len(ids)) if self.arguments.split_tail else 0
        sequence = Sequence(stream, ids, self.block_size, self.hashes(request), split)
        sequence.singly = singly
        if (top := request.sampling.prompt_logprobs) is not None:
            sequence.scores = Scores(tokens.unpack(request.token_ids), top)
            sequence.fetched = True  # nothing of it is taken from tiers
            return sequence
        return self._steps.asked(sequence)

    # KV blocks, as `BatchingEngine` says; where `exports` is not empty.

    def layout(self) -> str:
        """Digest of all that must agree for the bytes of a block to mean the same; empty without hand-off."""
        return self._model.layout if self._model is not None else ""

    def export(self, request: Generate, put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """Compute a prompt except its last token, and put each full block, or the state; returns what cancels it.

        A request that cannot be served is an error given to `done`.
        """
        assert self._model is not None
        assert self.adapters is not None
        try:
            self.adapters.require(request)
            if not self.exports:
                raise BadRequest("this worker exports no blocks")
            split = _split(self._whole, self.block_size, exportable(request, self._model.vocabulary.size, self.room))
        except RequestError as error:
            done(error)
            return _nothing
        if not split:
            done(None)
            return _nothing
        ids = tokens.unpack(request.token_ids + request.prior_output)[: split + 1]
        sequence = Sequence(None, ids, self.block_size, self.hashes(request), split)
        kind = StateExport if self._whole else Export
        return kind(self._shared, request, self._steps.asked(sequence), put, done, room).cancel

    def export_stored(self, request: Generate, put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """Put the full blocks of a prompt except its last token that are in the device or its tiers."""
        if self._steps.stored is None:
            done(BadRequest("this worker gives no blocks that it has stored"))
            return _nothing
        ids = request.token_ids + request.prior_output
        ids = ids[: 4 * _split(self._whole, self.block_size, len(ids) // 4)]
        return self._steps.stored.begin(block_hashes(ids, self.block_size, request.salt), put, done, room)

    def hold(self, request: Generate, reply: Reply, limit: int) -> Held:
        """Have a request computed later, with blocks from elsewhere. Raises BadRequest as `queue` does."""
        kind = HeldState if self._whole else HeldRequest
        return kind(self._shared, self._sequence(request, reply, limit))

    async def close(self) -> None:
        """End the step that is being computed, or the loading, and give all memory back."""

        def free() -> None:
            model, self._model = self._model, None  # the loading may have made it by then
            if model is not None:
                model.free()

        self._steps.stopped.set()
        self._steps.work.set()
        if self.tiers is not None:
            await self.tiers.close()
        if not await last_work(self._steps.thread, free, CLOSE):
            log.warning("llama.cpp: the thread that computes does not end")

    def scheduled(self, rank: int) -> tuple[list[Chunk], list[int]]:
        """Rows of the step: parts of prompts, and KV tokens of each answer that gets a token."""
        decoded = [row.start + 1 for row in self._steps.rows if row.count == 1 and row.sequence.answers]
        chunks = [
            Chunk(len(row.sequence.ids), row.start, row.count)
            for row in self._steps.rows
            if row.count > 1 or not row.sequence.answers
        ]
        return chunks, decoded

    def uncached(self, blocks: Seq[int], length: int) -> int:
        """By the cells' cache and the tiers; the last token is always computed, as it gives the next one."""
        here = self._cells.prefix(blocks, length)
        if self.tiers is not None:
            here += self.tiers.found(blocks[here : (length - 1) // self.block_size])
        return length - here * self.block_size

    def block_times(self) -> tuple[float, float, float]:
        """As the last ones took. Files are read before they are imported."""
        rate = self._steps.budget.rate
        prefill = self.block_size / rate if rate else 0.0
        if self.tiers is None or self._model is None or self._model.ranges is None:
            return prefill, 0.0, 0.0
        imported, read = self._model.ranges.import_seconds, self.tiers.read_seconds
        return prefill, imported, imported + read if read else 0.0

    def load(self) -> Load:
        """The kit's; held requests wait too."""
        load = super().load()
        return msgspec.structs.replace(
            load, waiting=load.waiting + (len(self._steps.scheduler.held) if self.schedulers else 0)
        )

    def statistics(self) -> LlamaCppStatistics:
        """The kit's, with the tokens that were computed."""
        totals = self._totals
        return LlamaCppStatistics(
            **msgspec.structs.asdict(super().statistics()),
            computed_total=self._steps.computed,
            exported_blocks=totals.exported,
            imported_blocks=totals.imported,
            refused_blocks=totals.refused,
        )


def _unchecked(agreed: Agreement, card: ModelCard) -> Any:
    """The tokenizer of a card whose check was not passed yet; else None."""
    return None if agreed.known else open_card(card).build()


def _nothing() -> None:
    """There is nothing to cancel."""


def _split(whole: bool, size: int, length: int) -> int:
    """Tokens of a prompt that are handed off: those of its full blocks of `size`, or all (`whole`), except the last
    token.
    """
    return length - 1 if whole else (length - 1) // size * size
