"""The engine `mocker`: the scheduler's iterations in real time, its blocks told as they come and go."""

import asyncio
import functools
from collections import Counter
from collections.abc import Sequence

import msgspec

from dynamod.kvcache.hashes import chain, local_hashes
from dynamod.message import tokens
from dynamod.message.discovery import Capabilities, ModelCard
from dynamod.message.kv_events import Load, Removed, Snapshot, Stored, WorkerEvent
from dynamod.message.worker import Chat, Generate
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, Spawn
from ..cards import card_of
from . import output
from .arguments import MockerArguments, arguments_of
from .rank import Rank
from .scheduler import Sequence as Scheduled
from .stream import Stream


class MockerStatistics(EngineStatistics, frozen=True):
    """With the KV cache. Blocks: all, in use, kept for later. `hit_rate`: share of admitted tokens found in it."""

    total_blocks: int = 0
    active_blocks: int = 0
    cached_blocks: int = 0
    hit_rate: float = 0.0
    preemptions: int = 0


def _unnamed(_index: int) -> None:
    """Without prefix caching no block can be found again."""


class Mocker(Engine):
    """Answers with made-up tokens, at the pace and with the KV blocks of a real engine. Needs a model's tokenizer."""

    name = "mocker"
    kind = "tokens"
    capabilities = Capabilities(exact_continuation=True, kv_events=True, seed=True, deterministic=True, min_tokens=True)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.arguments: MockerArguments = arguments_of(options.arguments, options.kv_cache_block_size)
        count = self.arguments.dp_size
        tell = self._told if count == 1 else self._told_by_one_of_many
        self.ranks = [Rank(self.arguments, tell, self._hand_out) for _ in range(count)]
        self._holders: Counter[int] = Counter()  # ranks that have a block, when there are several
        self._tokens = 0
        self._hashed: tuple[Generate, list[int], list[int]] | None = None

    async def start(self) -> None:
        """Read the card (weights are not needed), wait as long as told, begin to step."""
        card, vocabulary = await self._read()
        self._card = msgspec.structs.replace(
            card,
            engine=self.name,
            kv_cache_block_size=self.arguments.block_size,
            capabilities=msgspec.structs.replace(self.capabilities, kv_events=self.arguments.enable_prefix_caching),
            migration_limit=self.options.migration_limit,
        )
        self._table = output.table(vocabulary, [*card.eos_token_ids, card.bos_token_id or 0])
        room = self.arguments.room
        self._most = min(room, card.context_length or room)
        await asyncio.sleep(self.arguments.startup_time or 0)
        for number, rank in enumerate(self.ranks):
            self.spawn(rank.run(), f"steps of rank {number}")

    async def _read(self) -> tuple[ModelCard, int]:
        """The model's card and the size of its vocabulary."""
        options = self.options
        card = await card_of(options)
        assert options.path is not None
        return card, await asyncio.to_thread(output.vocabulary_size, options.config_path or options.path)

    def card(self) -> ModelCard:
        """See Engine."""
        return self._card

    def submit(self, request: Generate | Chat, reply: Reply) -> None:
        """Queue a request. One whose prompt can never fit is refused; an answer ends where the blocks would."""
        assert isinstance(request, Generate)
        prompt, done, most = tokens.count(request.token_ids), tokens.count(request.prior_output), self._most
        if not prompt:
            reply.failed("BadRequest", "the prompt is empty")
            return
        if prompt >= most:
            why = f"the prompt has {prompt} tokens, and this worker has room for {most} of prompt and answer together"
            reply.failed("BadRequest", why, code="context_length_exceeded")
            return
        limit = request.stops.max_tokens
        whole = most - prompt if limit is None else min(limit, most - prompt)
        if done >= whole:
            reply.tokens(b"", 0, "length")
            return
        seed = request.sampling.seed
        answer = output.Answer(request.token_ids, self.arguments.seed if seed is None else seed, self._table)
        local, names = self._hashes(request)
        stream = Stream(reply, request, answer, self.arguments.block_size, local, names)
        name = stream.name if self.arguments.enable_prefix_caching else _unnamed
        sequence = Scheduled(stream, tuple(names), prompt + done, whole - done, name)
        rank = self._rank(names, prompt + done)
        rank.add(sequence)
        reply.on_cancel(functools.partial(rank.scheduler.remove, sequence))

    def _rank(self, names: Sequence[int], length: int) -> Rank:
        """Where a prompt is computed soonest: what it lacks there and what waits there; then where most is free."""
        if len(self.ranks) == 1:
            return self.ranks[0]
        return min(self.ranks, key=lambda rank: (rank.missing(names, length) + rank.queued, rank.scheduler.pool.active))

    def _hashes(self, request: Generate) -> tuple[list[int], list[int]]:
        """Local and sequence hashes of a prompt; `footprint` has asked for those of the same request just before."""
        hashed, self._hashed = self._hashed, None
        if hashed is not None and hashed[0] is request:
            return hashed[1], hashed[2]
        if not self.arguments.enable_prefix_caching:
            return [], []
        local = local_hashes(request.token_ids + request.prior_output, self.arguments.block_size)
        return local, chain(local)

    def _hand_out(self, sequences: list[Scheduled]) -> None:
        """The hot loop: once per token."""
        self._tokens += len(sequences)
        for sequence in sequences:
            stream: Stream = sequence.owner
            position = stream.done
            stream.done = position + 1
            ids = stream.answer.ids
            if position >= len(ids):
                stream.answer.reach(position + 1)
            made = sequence.generated
            if made == 1:
                self.computed(stream.reply)
            stream.send(ids[position], 1, "length" if made >= sequence.max_tokens else None)

    def statistics(self) -> MockerStatistics:
        """See Engine. The step that lasts longest is the one that counts."""
        steps = [step for rank in self.ranks if (step := rank.in_step) is not None]
        since, step_tokens = max(steps, default=(None, 0))
        load, pools = self.load(), [rank.blocks for rank in self.ranks]
        return MockerStatistics(
            running=load.running,
            waiting=load.waiting,
            tokens=self._tokens,
            steps=sum(rank.steps for rank in self.ranks),
            in_step_for=since,
            step_tokens=step_tokens,
            total_blocks=load.total_blocks,
            active_blocks=load.active_blocks,
            cached_blocks=sum(pool.cached for pool in pools),
            hit_rate=load.hit_rate,
            preemptions=sum(rank.scheduler.preemptions for rank in self.ranks),
        )

    def load(self) -> Load:
        """See Engine."""
        schedulers = [rank.scheduler for rank in self.ranks]
        asked = sum(one.prompt_tokens for one in schedulers)
        return Load(
            running=sum(len(one.running) for one in schedulers),
            waiting=sum(len(one.waiting) for one in schedulers),
            active_blocks=sum(one.pool.active for one in schedulers),
            total_blocks=sum(one.pool.capacity for one in schedulers),
            hit_rate=sum(one.cached_tokens for one in schedulers) / max(1, asked),
        )

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        """See Engine. A block's name is its sequence hash."""
        names = tuple(dict.fromkeys(name for rank in self.ranks for name in rank.scheduler.pool.names()))
        return Snapshot(names, names), self.load()

    def footprint(self, request: Generate | Chat) -> tuple[tuple[int, ...], int] | None:
        """See Engine. Ids that another instance has made count as prompt: they have to be computed."""
        assert isinstance(request, Generate)
        local, names = self._hashes(request)
        self._hashed = request, local, names
        length = tokens.count(request.token_ids) + tokens.count(request.prior_output)
        return tuple(names), self._rank(names, length).missing(names, length)

    def _told(self, item: Stored | Removed) -> None:
        self.tell(item)

    def _told_by_one_of_many(self, item: Stored | Removed) -> None:
        """Routers see one worker: it holds a block as long as one of its ranks does."""
        if isinstance(item, Stored):
            self._holders.update(item.blocks)
            self.tell(item)
            return
        gone: list[int] = []
        for block in item.blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                gone.append(block)
        if gone:
            self.tell(Removed(tuple(gone)))
