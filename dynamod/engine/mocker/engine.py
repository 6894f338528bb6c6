"""The engine `mocker`: the scheduler's iterations in real time, its blocks published as they come and go."""

import asyncio
import functools
from collections.abc import Sequence

from dynamod.message import tokens
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.worker import Generate
from dynamod.transport.base import Reply

from ..base import EngineOptions, Spawn
from ..batching.engine import BatchingEngine, answer_limit
from . import output
from .arguments import MockerArguments, arguments_of
from .output import Stream
from .rank import Rank, RankUnion
from .scheduler import Sequence as Scheduled


class Mocker(BatchingEngine):
    """Answers with made-up tokens, at the speed and with the KV blocks of a real engine. Needs a model's tokenizer."""

    name = "mocker"
    capabilities = Capabilities(exact_continuation=True, kv_events=True, seed=True, deterministic=True, min_tokens=True)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        self.arguments: MockerArguments = arguments_of(options.arguments, options.kv_cache_block_size)
        super().__init__(options, spawn, self.arguments.block_size)
        self.ranks: list[Rank] = []

    async def start(self) -> None:
        """Read the card (weights are not needed), wait for `startup_time`, begin to step."""
        arguments = self.arguments
        card, vocabulary = await self._read()
        self.caching = arguments.enable_prefix_caching
        self._card = self.described(card)
        self._table = output.table(vocabulary, [*card.eos_token_ids, card.bos_token_id or 0])
        self._room = min(arguments.room, card.context_length or arguments.room)
        await asyncio.sleep(arguments.startup_time or 0)
        count = arguments.dp_size
        publish = self.publish if count == 1 else RankUnion(self.publish).publish
        self.ranks = [Rank(arguments, publish, self._hand_out) for _ in range(count)]
        self.schedulers = [rank.scheduler for rank in self.ranks]
        self.clocks = [rank.clock for rank in self.ranks]
        for number, rank in enumerate(self.ranks):
            self.spawn(rank.run(), f"steps of rank {number}")

    async def _read(self) -> tuple[ModelCard, int]:
        """The model's card and the size of its vocabulary."""
        options = self.options
        card = await self._model_card()
        assert options.path is not None
        return card, await asyncio.to_thread(output.vocabulary_size, options.config_path or options.path)

    def submit(self, request: Generate, reply: Reply) -> None:
        """Queue a request. One whose prompt can never fit is refused; an answer ends where the blocks would."""
        prompt, done = tokens.count(request.token_ids), tokens.count(request.prior_output)
        limit = answer_limit(prompt, self._room, request.stops.max_tokens)
        if done >= limit:
            reply.tokens(b"", 0, "length")
            return
        seed = request.sampling.seed
        ids = output.OutputIds(request.token_ids, self.arguments.seed if seed is None else seed, self._table)
        hashes = self.hashes(request)
        stream = Stream(reply, request, ids, self.block_size, hashes)
        name = stream.name if self.caching else lambda _index: None  # no block can be found again
        sequence = Scheduled(stream, tuple(hashes.blocks), prompt + done, limit - done, name)
        rank = self._rank(hashes.blocks, prompt + done)
        rank.add(sequence)
        reply.on_cancel(functools.partial(rank.scheduler.remove, sequence))

    def uncached(self, blocks: Sequence[int], length: int) -> int:
        """By the cache of the rank that would take the request."""
        return self._rank(blocks, length).uncached(blocks, length)

    def _rank(self, blocks: Sequence[int], length: int) -> Rank:
        """Where a prompt is computed soonest: by what is not cached there and what waits there; then the most free."""
        if len(self.ranks) == 1:
            return self.ranks[0]
        return min(self.ranks, key=lambda one: (one.uncached(blocks, length) + one.queued, one.scheduler.pool.active))

    def _hand_out(self, sequences: list[Scheduled]) -> None:
        """The hot loop: once per token."""
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
            stream.send(ids[position], 1, "length" if made >= sequence.max_tokens else None)
