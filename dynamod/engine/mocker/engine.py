"""The engine `mocker`: schedulers' iterations in real time, their blocks published as they come and go."""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from dynamod.kvcache.hashes import PrefixHashes, block_hashes
from dynamod.kvcache.store import BlockStore
from dynamod.message import tokens
from dynamod.message.discovery import PREFILL, Capabilities, ModelCard
from dynamod.message.kv_events import Removed, Stored
from dynamod.message.worker import MATCHED, Embed, Generate, Grammar, TransferShape
from dynamod.transport.base import Reply

from ..base import EngineOptions, Spawn
from ..batching.engine import BatchingEngine
from ..batching.handoff import AskRoom, Done, Held, Put, unlimited
from ..batching.steps import Chunk
from ..step_clock import StepClock
from . import output
from .arguments import MockerArguments, arguments_of
from .embedding import Embedder
from .handoff import Export, Imports, StoredExport
from .output import Stream
from .own_transfer import MockerTransfer
from .scheduler import Scheduler, Step
from .scheduler import Sequence as Scheduled
from .tiers import block_times, load_seconds
from .timing import TIMINGS

if TYPE_CHECKING:
    from .constrained import Preferences

CATCH_UP = 0.1
"""Seconds that the steps may catch up when the process was held up; a real engine would have lost them."""

Publish = Callable[[Stored | Removed], None]


class Rank:
    """`publish` gets the events of its blocks; `hand_out` gets its number and the sequences that have a new token."""

    def __init__(
        self,
        number: int,
        arguments: MockerArguments,
        publish: Publish,
        hand_out: Callable[[int, list[Scheduled]], None],
        tiers: BlockStore | None = None,
    ) -> None:
        self._number = number
        self._arguments, self._publish, self._hand_out = arguments, publish, hand_out
        self.scheduler = Scheduler(
            arguments, TIMINGS[arguments.timing], stored=self._stored, removed=self._removed, tiers=tiers
        )
        self.clock = StepClock()
        self.step: Step | None = None  # that is computed now, or was the last
        self.exports: list[Export] = []
        self._work = asyncio.Event()

    def add(self, sequence: Scheduled) -> None:
        """Queue a request."""
        self.scheduler.add(sequence)
        self._work.set()

    def drop(self, export: Export) -> None:
        """Stop exporting a prompt. Does nothing the second time."""
        if export in self.exports:
            self.exports.remove(export)
            self.scheduler.remove(export.sequence)

    @property
    def queued(self) -> int:
        """Tokens of the requests that wait for admission."""
        return sum(sequence.total for sequence in self.scheduler.waiting)

    async def run(self) -> None:
        """Step forever."""
        ratio, scheduler, clock = self._arguments.speedup_ratio, self.scheduler, self.clock
        now = asyncio.get_running_loop().time
        due = now()
        while True:
            if scheduler.idle:
                self._work.clear()
                await self._work.wait()
                due = now()
            self.step = step = scheduler.step()
            clock.begin(step.prefilled + len(step.tokens))
            if ratio:
                due = max(due, now() - CATCH_UP) + step.ms / 1000 / ratio
                await asyncio.sleep(max(0.0, due - now()))
            else:
                await asyncio.sleep(0)
            self._hand_out(self._number, step.tokens)
            clock.end()
            if self.exports:
                for export in tuple(self.exports):
                    if not export.goes_on(step.finished):
                        self.drop(export)

    def _stored(self, parent: int | None, blocks: Sequence[int]) -> None:
        acting = self.scheduler.acting
        assert acting is not None
        hashes: PrefixHashes = acting.owner.hashes
        self._publish(Stored(parent, tuple(blocks), hashes.locals_of(blocks)))

    def _removed(self, blocks: Sequence[int]) -> None:
        self._publish(Removed(tuple(blocks)))


def union(publish: Publish) -> Publish:
    """Takes events of several ranks and publishes those of one worker: it has a block as long as one of them has it."""
    ranks: Counter[int] = Counter()  # that have a block

    def take(event: Stored | Removed) -> None:
        if isinstance(event, Stored):
            ranks.update(event.blocks)
            publish(event)
            return
        ranks.subtract(event.blocks)
        gone = tuple(block for block in event.blocks if not ranks[block])
        for block in gone:
            del ranks[block]
        if gone:
            publish(Removed(gone))

    return take


class Mocker(BatchingEngine):
    """Answers with made-up tokens, at the speed and with the KV blocks of a real engine. Needs a model's tokenizer.

    Its vectors are made up too: a hash of the ids.
    """

    name = "mocker"
    serves = (Generate, Embed)
    capabilities = Capabilities(
        exact_continuation=True,
        kv_events=True,
        seed=True,
        deterministic=True,
        min_tokens=True,
        grammars=True,
        forms=MATCHED,
        matryoshka=True,
    )

    own_transfer: MockerTransfer | None = None

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        self.arguments: MockerArguments = arguments_of(options.arguments, options.kv_cache_block_size)
        super().__init__(options, spawn, self.arguments.block_size)
        self.ranks: list[Rank] = []
        self._preferences: Preferences | None = None

    async def start(self) -> None:
        """Read the card (weights are not needed), wait for `startup_time`, begin to step."""
        arguments = self.arguments
        card, vocabulary = await self._read()
        self.caching = arguments.enable_prefix_caching
        if arguments.kv_transfer == "worker":
            self.exports = ("prompts", "stored")
        types = (*card.types, "embeddings", "score")
        self._card = msgspec.structs.replace(
            self.described(card), types=types, embedding_length=arguments.embedding_length
        )
        self._embedder = Embedder(
            TIMINGS[arguments.timing], arguments.speedup_ratio, arguments.embedding_length, arguments.seed
        )
        self._table = output.table(vocabulary, [*card.eos_token_ids, card.bos_token_id or 0])
        self.room = min(arguments.room, card.context_length or arguments.room)
        await asyncio.sleep(arguments.startup_time or 0)
        count = arguments.dp_size
        publish = self.publish if count == 1 else union(self.publish)
        if arguments.tiered:  # of the worker: its ranks share the memory
            self.tiers = self.options.stores(arguments.tiered).simulated(arguments, self.publish)
        self.ranks = [Rank(number, arguments, publish, self._hand_out, self.tiers) for number in range(count)]
        self.schedulers = [rank.scheduler for rank in self.ranks]
        self.clocks = [rank.clock for rank in self.ranks]
        for number, rank in enumerate(self.ranks):
            self.spawn(rank.run(), f"steps of rank {number}")
        if arguments.kv_transfer != "worker":
            mode, transfer = self.options.disaggregation_mode, self._transfer(arguments.kv_transfer)
            if mode != "aggregated" or not transfer.needed:  # as SGLang, which is told its part when it starts
                self.own_transfer = transfer
                self._card = self.described(self._card, needs_prefill=transfer.needed and mode == "decode")
            if mode == PREFILL:
                await transfer.listen(self.options.transfer_host)

    async def _read(self) -> tuple[ModelCard, int]:
        """The model's card and the size of its vocabulary."""
        options = self.options
        card = await self._model_card()
        assert options.path is not None
        return card, await asyncio.to_thread(output.vocabulary_size, options.config_path or options.path)

    def _transfer(self, shape: TransferShape) -> MockerTransfer:
        return MockerTransfer(self, shape)

    def submit(self, request: Generate | Embed, reply: Reply) -> None:
        """Queue a request, or have its blocks fetched before."""
        if isinstance(request, Embed):
            task = self.spawn(self._embedder.answer(request, reply), f"vectors {request.request_id}")
            reply.on_cancel(task.cancel)
            return
        transfer = self.own_transfer
        if transfer is not None and (request.handoff or self._card.capabilities.needs_prefill):
            transfer.answer(request, reply)
        else:
            super().submit(request, reply)

    async def close(self) -> None:
        """Hand out no more prompts."""
        if self.own_transfer is not None:
            self.own_transfer.close()

    def queue(self, request: Generate, reply: Reply, limit: int) -> Callable[[], object]:
        """Have a request computed, by the rank that has it soonest."""
        sequence = self._sequence(request, reply, limit)
        rank = self._rank(sequence.blocks, sequence.length)
        rank.add(sequence)
        return functools.partial(rank.scheduler.remove, sequence)

    def prepared(self, grammar: Grammar) -> bool:
        """Also what the first answer with a form needs."""
        return self._preferences is not None and super().prepared(_held_to_the_form(grammar))

    async def prepare(self, grammar: Grammar) -> None:
        """Compile it in a thread."""
        from .constrained import Preferences

        await super().prepare(_held_to_the_form(grammar))
        if self._preferences is None:
            self._preferences = await asyncio.to_thread(Preferences, self.grammars().vocabulary)

    def _sequence(self, request: Generate, reply: Reply, limit: int) -> Scheduled:
        prompt, done = tokens.count(request.token_ids), tokens.count(request.prior_output)
        seed = self.arguments.seed if request.sampling.seed is None else request.sampling.seed
        hashes = self.hashes(request)
        if request.grammar is not None:
            return self._constrained(request, request.grammar, reply, seed, hashes, limit)
        ids = output.OutputIds(request.token_ids, seed, self._table)
        stream = Stream(reply, request, ids, self.block_size, hashes)
        return Scheduled(stream, tuple(hashes.blocks), prompt + done, limit - done, _name(stream, self.caching))

    def _constrained(
        self, request: Generate, grammar: Grammar, reply: Reply, seed: int, hashes: PrefixHashes, limit: int
    ) -> Scheduled:
        """A request whose answer keeps to a form, and ends on its own."""
        from .constrained import ConstrainedIds, sender  # not needed by other requests

        grammar = _held_to_the_form(grammar)
        matcher = self.grammars().matcher(grammar)
        assert self._preferences is not None, "`prepare` has made them"
        prompt, prior = tokens.count(request.token_ids), tokens.unpack(request.prior_output)
        key = output.noise_key(request.token_ids, seed)
        closing = matcher.vocabulary.encode(grammar.closing)
        ids = ConstrainedIds(key, matcher, self._preferences, prior, request.stops.min_tokens or 0, closing)
        stream = Stream(reply, request, ids, self.block_size, hashes)
        blocks, done = tuple(hashes.blocks), len(prior)
        sequence = Scheduled(stream, blocks, prompt + done, limit - done, _name(stream, self.caching))

        def ends(count: int) -> None:
            sequence.max_tokens = min(sequence.max_tokens, count)

        stream.send = sender(reply, ids, done, ends)
        return sequence

    def layout(self) -> str:
        """Model and sizes: what a block's bytes depend on here."""
        return f"mocker/1/{self._card.mdc_sum}/{self.block_size}/{self.arguments.kv_bytes_per_token}"

    def export(self, request: Generate, put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """Compute a prompt for another worker."""
        ids = (request.token_ids + request.prior_output)[:-4]  # the last token gives the next one: the reader's work
        export = Export(
            PrefixHashes(self.block_size, ids), self.block_size, self.arguments.kv_bytes_per_token, put, done, room
        )
        if not export.hashes.blocks:
            done(None)
            return lambda: None
        length = len(export.hashes.blocks) * self.block_size
        export.sequence = Scheduled(export, tuple(export.hashes.blocks), length, 0, lambda _index: None)
        rank = self._rank(export.hashes.blocks, length)
        rank.exports.append(export)
        rank.add(export.sequence)
        export.left = functools.partial(rank.drop, export)
        return export.left

    def export_stored(self, request: Generate, put: Put, done: Done, room: AskRoom = unlimited) -> Callable[[], object]:
        """Give what the cache of a rank has, and after that what tiers have, when that would be loaded."""
        names = block_hashes((request.token_ids + request.prior_output)[:-4], self.block_size)
        here = max(rank.scheduler.pool.cached_prefix(names) for rank in self.ranks)
        below = self.tiers.found(names[here:]) if self.tiers is not None else 0
        names, seconds = names[: here + below], load_seconds(self.tiers, names[here : here + below], self.block_times())
        size = self.block_size * self.arguments.kv_bytes_per_token
        return StoredExport(names, size, here, seconds, put, done, room).cancel

    def hold(self, request: Generate, reply: Reply, limit: int) -> Held:
        """Hold a request until its blocks have come."""
        sequence = self._sequence(request, reply, limit)
        return Imports(sequence, self._rank(sequence.blocks, sequence.length), self.arguments)

    def uncached(self, blocks: Sequence[int], length: int) -> int:
        """By the cache of the rank that would take the request."""
        return self._rank(blocks, length).scheduler.uncached(blocks, length)

    def block_times(self) -> tuple[float, float, float]:
        """By the timing and the bandwidths."""
        ratio = self.arguments.speedup_ratio or 1.0
        prefill, host, disk = block_times(self.arguments, TIMINGS[self.arguments.timing])
        return prefill / ratio, *((0.0, 0.0) if self.tiers is None else (host / ratio, disk / ratio))

    def _rank(self, blocks: Sequence[int], length: int) -> Rank:
        """Where a prompt is computed soonest: by what is not cached there and what waits there; then the most free."""
        if len(self.ranks) == 1:
            return self.ranks[0]
        return min(
            self.ranks,
            key=lambda one: (one.scheduler.uncached(blocks, length) + one.queued, one.scheduler.pool.active),
        )

    def scheduled(self, rank: int) -> tuple[list[Chunk], list[int]]:
        """Parts of prompts, and KV tokens of each answer that gets a token: those of the step are counted already."""
        step = self.ranks[rank].step
        if step is None:
            return [], []
        first = {id(sequence) for sequence, _ in step.chunks}
        decoded = [one.length + one.generated - 1 for one in step.tokens if id(one) not in first]
        return [chunk for _, chunk in step.chunks], decoded

    def _hand_out(self, rank: int, sequences: list[Scheduled]) -> None:
        """The hot loop: once per token."""
        if self.stepped is not None and (clock := self.clocks[rank]).computed >= clock.due:
            clock.due = clock.computed + self.stepped(rank)
        self.tokens += len(sequences)
        for sequence in sequences:
            stream: Stream = sequence.owner
            position = stream.done
            stream.done = position + 1
            ids = stream.output.ids
            if position >= len(ids):
                stream.output.reach(position + 1)
            made = sequence.generated
            if made == 1:
                self.prefill_completed(stream.reply)
                stream.reply.cached_tokens(min(sequence.found, stream.prompt_tokens))
            stream.send(ids[position], 1, "length" if made >= sequence.max_tokens else None)


def _held_to_the_form(grammar: Grammar) -> Grammar:
    """Noise would never come to the end of reasoning or calls, so neither begins but where the prompt has begun it."""
    closing = "" if grammar.opening else grammar.closing
    return msgspec.structs.replace(grammar, opening="", closing=closing, calls="")


def _name(stream: Stream, caching: bool) -> Callable[[int], int | None]:
    """The names of a sequence's blocks; without a cache no block can be found again."""
    return stream.name if caching else lambda _index: None
