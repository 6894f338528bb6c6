"""The engine `llamacpp`: steps that the scheduler decides on the event loop and one thread computes."""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from dynamod.actor.threads import last_work
from dynamod.kvcache.hashes import block_hashes
from dynamod.kvcache.tiers.settings import open_tiers
from dynamod.message import tokens
from dynamod.message.discovery import Adapter, Capabilities, ModelCard
from dynamod.message.errors import BadRequest, EngineFailed, NotFound, RequestError, UserError
from dynamod.message.kv_events import Load, Removed, Stored
from dynamod.message.worker import MATCHED, Generate
from dynamod.preprocess.source import open_card
from dynamod.transport.base import Reply

from ..base import EngineOptions, Spawn, StepClock
from ..batching.engine import BatchingEngine
from ..batching.handoff import AskRoom, Done, Held, Put, unlimited
from ..batching.steps import Chunk
from ..lora import LATE, digested
from .arguments import LlamaCppArguments, arguments_of
from .files import gguf_file
from .handoff import Export, HeldRequest, Shared, Totals
from .kv_cells import Cells, Operation, Sequence
from .lora import check as check_adapters
from .model import Model, StepFailed, Work
from .request import Stream, exportable
from .sampling import Picked
from .scheduler import Row, Scheduler
from .scores import Scores
from .sizing import StepBudget
from .state_handoff import HeldState, StateExport
from .statistics import LlamaCppStatistics
from .stored import StoredExports
from .tiering import Tiering
from .transfers import Transfer

log = logging.getLogger("dynamod.engine")

CLOSE = 3.0
"""Seconds that `close` waits for the step that is being computed; a thread that hangs is left behind."""

AHEAD = 0.03
"""Seconds: after a longer step the next one is not begun ahead. A new request would wait for it, and what the thread
waits between two steps, less than a millisecond, does not count then."""


class _Step(NamedTuple):
    """A step in the thread: its rows, the tokens it computes, and those it will have chosen."""

    rows: list[Row]
    tokens: int
    picked: Future[list[Picked | Exception]]


def _goes_on(sequence: Sequence) -> bool:
    return cast(Stream, sequence.owner).goes_on


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
        lora=True,
    )

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        self.arguments: LlamaCppArguments = arguments_of(options.arguments, options.kv_cache_block_size)
        super().__init__(options, spawn, self.arguments.block_size)
        self._work = asyncio.Event()
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="llamacpp")
        self._operations: list[Operation | Transfer] = []  # for the next step
        self._transfers = False  # among them
        self._totals = Totals()
        self._held: Seq[Sequence] = ()
        self._rows: Seq[Row] = ()  # of the step that is computed now, or was the last
        self._tiering: Tiering | None = None
        self._stored: StoredExports | None = None
        batch = self.arguments.max_num_batched_tokens
        self._step_budget = StepBudget(self.arguments.step_seconds, self.block_size, batch)
        self._layout = ""
        self._whole = False  # the state of a prompt is handed off in place of its blocks
        self._computed = 0
        self._model: Model | None = None
        self._adapters: dict[str, bool] = {}  # those that are loaded, by digest: whether the card lists them

    async def start(self) -> None:
        """Read the card, load in the thread, compute a first few tokens. Raises UserError."""
        assert self.options.path is not None
        arguments, path = self.arguments, gguf_file(self.options.path)
        card = await self._file_card(path)
        log.info("llama.cpp loads %s", path)
        await asyncio.to_thread(check_adapters, self.options.lora, path)
        adapters = [await asyncio.to_thread(digested, one) for one in self.options.lora]
        warms = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, self.phase, "warm-up")
        rate = await asyncio.wrap_future(self._thread.submit(self._load, path, card, adapters, warms))
        model = self._model
        assert model is not None
        self.caching = arguments.enable_prefix_caching and model.shares
        if arguments.stretch > 1:
            card = msgspec.structs.replace(card, context_length=model.context_length)
        elif not card.context_length or model.context_length < card.context_length:
            log.warning("llama.cpp: the context is cut to the %d KV cells there are", model.context_length)
            card = await self._model_card(path, context_length=model.context_length)
        ends = tuple(dict.fromkeys((*card.eos_token_ids, *model.vocabulary.ends)))
        card = self.described(msgspec.structs.replace(card, eos_token_ids=ends))
        ranged, self._whole = model.ranges is not None, model.states is not None
        either = ranged or self._whole
        can = {"handoff": either, "stored_blocks": ranged, "role_switch": either}
        capabilities = msgspec.structs.replace(card.capabilities, **can)
        self._card = msgspec.structs.replace(card, capabilities=capabilities, adapters=tuple(adapters))
        self._adapters = {one.digest: True for one in adapters}
        self._cells = Cells(
            self._operations.append,
            blocks=model.cells // self.block_size,
            size=self.block_size,
            slots=model.slots,
            caching=self.caching,
            idle=arguments.idle_tokens // self.block_size,
            publish=self._publish_blocks,
        )
        self._scheduler = Scheduler(self._cells, arguments.max_num_seqs, arguments.max_num_batched_tokens)
        self._scheduler.adapters = bool(adapters)
        self._held = self._scheduler.held
        operate, wake = self._operations.append, self._work.set
        self._shared = Shared(
            self._scheduler, self._cells, self._transfer, operate, wake, self._totals, model.export_bytes
        )
        self.schedulers, self.clocks = [self._scheduler], [StepClock()]
        self._step_budget.rate = rate
        self.room = min(model.context_length, model.cells // self.block_size * self.block_size)
        await self._open_tiers(model)
        self.spawn(self._run(model), "steps")

    async def _open_tiers(self, model: Model) -> None:
        """Raises UserError."""
        if model.ranges is None:
            if self.arguments.tiered:
                log.warning("llama.cpp: this model's KV cells cannot be exported by block, so it has no tiers")
            return
        self.tiers = await open_tiers(self.arguments, self._layout, self.publish)
        if self.tiers is not None:
            later, rate = asyncio.get_running_loop().call_later, lambda: self._step_budget.rate
            self._tiering = Tiering(self.tiers, self._shared, model.ranges, later, rate, self._go_on)
            self._scheduler.fetch = self._tiering.fetch
        self._stored = StoredExports(self._shared, model.ranges, self.tiers, self._go_on)

    def _publish_blocks(self, event: Stored | Removed) -> None:
        self.publish(event)
        if self._tiering is not None and isinstance(event, Stored):
            self._tiering.copy(reversed(event.blocks))

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

    def _load(self, path: Path, card: ModelCard, adapters: Seq[Adapter], warms: Callable[[], object]) -> float:
        """In the thread: load and, after `warms`, try; returns the tokens per second of that."""
        context = self.options.context_length
        model = self._model = Model(path, self.arguments, context, lambda: not self._stopped.is_set(), adapters)
        model.vocabulary.compare(open_card(card).build())
        warms()
        rate = model.warm()
        self._layout = model.layout
        return rate

    def holds_adapter(self, digest: str) -> bool:
        """Until its memory has been given back."""
        return digest in self._adapters

    async def take_adapter(self, adapter: Adapter) -> None:
        """Load it in the thread, between two steps."""
        assert self._model is not None
        assert self.options.path is not None
        if not self.holds_adapter(adapter.digest):
            await asyncio.to_thread(check_adapters, (adapter,), gguf_file(self.options.path))
        before = self._adapters.get(adapter.digest)
        self._adapters[adapter.digest] = self._scheduler.adapters = True  # nobody frees it meanwhile
        try:
            await asyncio.wrap_future(self._thread.submit(self._model.adapters.load, adapter))
        except UserError:
            if before is None:
                del self._adapters[adapter.digest]
            raise

    async def leave_adapter(self, adapter: Adapter) -> None:
        """Free it when no request needs it, and those that do not know yet have come."""
        if all(one.digest != adapter.digest for one in self._card.adapters):
            self._adapters[adapter.digest] = False
            self.spawn(self._drop_adapter(adapter.digest), f"unload {adapter.name}")

    async def _drop_adapter(self, digest: str) -> None:
        scheduler = self._scheduler
        await asyncio.sleep(LATE)
        while scheduler.has(digest):  # noqa: ASYNC110 - it knows no waiters
            await asyncio.sleep(LATE)
        if self._adapters.get(digest) is not False or self._model is None:
            return  # loaded again, or freed already
        del self._adapters[digest]
        scheduler.forget(digest)
        await asyncio.wrap_future(self._thread.submit(self._model.drop_adapter, digest))

    def _require_adapter(self, request: Generate) -> None:
        if request.adapter is not None and request.adapter.digest not in self._adapters:
            raise NotFound(f"the adapter {request.adapter.name!r} is not loaded here any more", param="model")

    def queue(self, request: Generate, reply: Reply, limit: int) -> Callable[[], object]:
        """Have a request computed. Raises BadRequest for ids that the model does not know, NotFound for an adapter."""
        sequence = self._sequence(request, reply, limit)
        self._scheduler.add(sequence)
        self._work.set()
        return functools.partial(self._scheduler.remove, sequence)

    def _sequence(self, request: Generate, reply: Reply, limit: int) -> Sequence:
        assert self._model is not None
        self._require_adapter(request)
        matcher = self.grammars().matcher(request.grammar) if request.grammar is not None else None
        stream = Stream(request, reply, self._model.vocabulary.size, limit, matcher)
        ids = tokens.unpack(request.token_ids + request.prior_output)
        singly = tokens.count(request.token_ids) if self.arguments.stepwise_continuation else 0
        split = self._split(singly or len(ids)) if self.arguments.split_tail else 0
        sequence = Sequence(stream, ids, self.block_size, self.hashes(request), split)
        sequence.singly = singly
        if (top := request.sampling.prompt_logprobs) is not None:
            sequence.scores = Scores(tokens.unpack(request.token_ids), top)
            sequence.fetched = True  # nothing of it is taken from tiers
            return sequence
        return self._asked(sequence)

    def _asked(self, sequence: Sequence) -> Sequence:
        if self._tiering is not None:
            self._tiering.ask(sequence)
        return sequence

    def _split(self, length: int) -> int:
        """Tokens of a prompt that are handed off: those of its full blocks, or all, without the last token."""
        return length - 1 if self._whole else (length - 1) // self.block_size * self.block_size

    # KV blocks, as `BatchingEngine` says; with `capabilities.handoff` on the card.

    def layout(self) -> str:
        """Digest of all that must agree for the bytes of a block to mean the same; empty without hand-off."""
        return self._layout

    def export(self, request: Generate, put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """Compute a prompt but for its last token, and put each full block, or the state; returns what cancels it.

        A request that cannot be served is an error given to `done`.
        """
        assert self._model is not None
        try:
            self._require_adapter(request)
            if not self._layout:
                raise BadRequest("this worker exports no blocks")
            split = self._split(exportable(request, self._model.vocabulary.size, self.room))
        except RequestError as error:
            done(error)
            return _nothing
        if not split:
            done(None)
            return _nothing
        ids = tokens.unpack(request.token_ids + request.prior_output)[: split + 1]
        sequence = Sequence(None, ids, self.block_size, self.hashes(request), split)
        kind = StateExport if self._whole else Export
        return kind(self._shared, request, self._asked(sequence), put, done, room).cancel

    def export_stored(self, request: Generate, put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """Put the full blocks of a prompt but for its last token that are in the device or its tiers."""
        if self._stored is None:
            done(BadRequest("this worker gives no blocks that it has stored"))
            return _nothing
        ids = request.token_ids + request.prior_output
        ids = ids[: 4 * self._split(len(ids) // 4)]
        return self._stored.begin(block_hashes(ids, self.block_size, request.salt), put, done, room)

    def hold(self, request: Generate, reply: Reply, limit: int) -> Held:
        """Have a request computed later, with blocks from elsewhere. Raises BadRequest as `queue` does."""
        kind = HeldState if self._whole else HeldRequest
        return kind(self._shared, self._sequence(request, reply, limit))

    def _transfer(self, transfer: Transfer) -> None:
        """Give it to the thread, with the next step or without one; what came of it is told on the loop."""
        transfer.told = functools.partial(_later, asyncio.get_running_loop(), transfer.told)
        self._operations.append(transfer)
        self._go_on()

    def _go_on(self) -> None:
        """There is work for the thread besides tokens."""
        self._transfers = True
        self._work.set()

    async def close(self) -> None:
        """End the step that is being computed, or the loading, and give all memory back."""
        self._stopped.set()
        self._work.set()
        if self.tiers is not None:
            await self.tiers.close()
        if not await last_work(self._thread, self._free, CLOSE):
            log.warning("llama.cpp: the thread that computes does not end")

    def _free(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            model.free()

    # Steps.

    async def _run(self, model: Model) -> None:
        """While a step is computed the next one is already given to the thread, where it is known: each sequence gets
        one more token. So the thread does not wait until tokens have been handed out.
        """
        scheduler, step_budget, now = self._scheduler, self._step_budget, asyncio.get_running_loop().time
        [clock] = self.clocks
        step: _Step | None = None
        took = 0.0
        while True:
            if step is None:
                if scheduler.idle and not self._transfers:
                    self._work.clear()
                    await self._work.wait()
                if self._stopped.is_set():
                    return
                if scheduler.idle and not self._transfers:
                    continue
                step = self._begin(model, scheduler.plan(step_budget.chunk(scheduler.decoding)))
            ahead = scheduler.ahead(step.rows, _goes_on) if took < AHEAD else []
            following = self._begin(model, ahead) if ahead else None
            self._rows = rows = step.rows
            began = now()
            if rows and not scheduler.idle:  # or nobody waits for it any more
                clock.begin(step.tokens)
            try:
                picked = await asyncio.wrap_future(step.picked)
            except Exception as error:
                clock.end()
                if following is not None:
                    with contextlib.suppress(Exception):  # it needs the tokens of this one
                        await asyncio.wrap_future(following.picked)
                self._failed(rows, error)
                step = None
                continue
            took = now() - began
            step_budget.took(sum([row.count for row in rows if row.count > 1]), took)
            scheduler.commit(rows)
            if self.stepped is not None and rows and clock.computed >= clock.due:
                clock.due = clock.computed + self.stepped(0)
            clock.end()
            self._hand_out([row for row in rows if row.last], picked)
            step = following

    def _begin(self, model: Model, rows: list[Row]) -> "_Step":
        """Give a step to the thread, with what has to happen to the cells before."""
        if self._tiering is not None:
            self._tiering.pump()
        if self._stored is not None:
            self._stored.pump()
        work, operations = [_work(row) for row in rows], self._operations.copy()
        self._operations.clear()
        self._transfers = any(one is not None and one.pending for one in (self._tiering, self._stored))
        count = sum([row.count for row in rows])
        self._computed += count
        adapter = rows[0].sequence.adapter if rows else ""
        return _Step(rows, count, self._thread.submit(model.step, operations, work, adapter))

    def _failed(self, rows: Seq[Row], error: Exception) -> None:
        """A step could not be computed: who is at fault alone ends, the others are computed again."""
        if isinstance(error, StepFailed):
            log.warning("%s (%d sequences)", error, len(rows))
        else:
            log.error("llama.cpp: a step failed", exc_info=error)
        for sequence in self._scheduler.failed(list(rows)):
            self._end(sequence, error)

    def _end(self, sequence: Sequence, error: Exception) -> None:
        """One answer cannot go on. What llama.cpp says of it is for the log, not for clients."""
        owner: Stream | Export = sequence.owner
        request = owner.request.request_id
        log.warning("llama.cpp: request %s failed: %s", request, error)
        why = f"{self.name} could not compute request {request}; the worker's log says why under this id"
        if isinstance(owner, Export):
            owner.failed(EngineFailed(why))
        else:
            owner.reply.failed("EngineFailed", why)

    def _hand_out(self, rows: list[Row], picked: list[Picked | Exception]) -> None:
        """The hot loop: once per token."""
        for row, one in zip(rows, picked, strict=True):
            sequence = row.sequence
            if sequence.gone:  # its reader has left while this was computed
                continue
            stream: Stream = sequence.owner
            if isinstance(one, Exception):
                self._scheduler.remove(sequence)
                self._end(sequence, one)
                continue
            self.tokens += 1
            sequence.ids.append(one.index)
            first, finish = stream.take(one.index)
            if first:
                self.prefill_completed(stream.reply)
                stream.reply.cached_tokens(min(sequence.found, tokens.count(stream.request.token_ids)))
                if sequence.scores is not None:
                    stream.reply.prompt_logprobs(*sequence.scores.result())
            if finish is not None:
                self._scheduler.remove(sequence)
            stream.send(one, finish)

    def scheduled(self, rank: int) -> tuple[list[Chunk], list[int]]:
        """Rows of the step: parts of prompts, and KV tokens of each answer that gets a token."""
        decoded = [row.start + 1 for row in self._rows if row.count == 1 and row.sequence.answers]
        chunks = [
            Chunk(len(row.sequence.ids), row.start, row.count)
            for row in self._rows
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
        rate = self._step_budget.rate
        prefill = self.block_size / rate if rate else 0.0
        if self.tiers is None or self._model is None or self._model.ranges is None:
            return prefill, 0.0, 0.0
        imported, read = self._model.ranges.import_seconds, self.tiers.read_seconds
        return prefill, imported, imported + read if read else 0.0

    def load(self) -> Load:
        """The kit's; held requests wait too."""
        load = super().load()
        return msgspec.structs.replace(load, waiting=load.waiting + len(self._held))

    def statistics(self) -> LlamaCppStatistics:
        """The kit's, with the tokens that were computed."""
        totals = self._totals
        return LlamaCppStatistics(
            **msgspec.structs.asdict(super().statistics()),
            computed_total=self._computed,
            exported_blocks=totals.exported,
            imported_blocks=totals.imported,
            refused_blocks=totals.refused,
        )


def _nothing() -> None:
    """There is nothing to cancel."""


def _later(loop: asyncio.AbstractEventLoop, told: Callable[[bytes | Exception], object], result: Any) -> None:
    """In the thread. A loop that is closed needs nothing any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(told, result)


def _work(row: Row) -> Work:
    """What the thread needs to know: it does not look at sequences, which the loop may end meanwhile."""
    sequence, start = row.sequence, row.start
    sampler = sequence.owner.sampler if row.last else None
    return Work(sequence.slot, start, sequence.ids[start : start + row.count], sampler, sequence.scores)
