"""The engine `mocker`: the scheduler's iterations in real time, its blocks told as they come and go."""

import asyncio
import functools
from collections.abc import Sequence

import msgspec

from dynamod.kvcache.hashes import chain, local_hashes
from dynamod.message import tokens
from dynamod.message.cache import FeedItem, Holds, Load, Removed, Stored
from dynamod.message.registry import Capabilities, ModelCard
from dynamod.message.worker import Chat, Generate
from dynamod.post.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, Spawn
from ..cards import card_of
from . import output
from .arguments import MockerArguments, arguments_of
from .scheduler import Scheduler
from .scheduler import Sequence as Scheduled
from .stream import Stream
from .timing import TIMINGS

_BEHIND = 0.1
"""Seconds that the steps may catch up when the process was held up; a real engine would have lost them."""


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
    capabilities = Capabilities(exact_continuation=True, kv_events=True, seed=True, min_tokens=True)

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.arguments: MockerArguments = arguments_of(options.arguments, options.kv_cache_block_size)
        self.scheduler = Scheduler(
            self.arguments, TIMINGS[self.arguments.timing], stored=self._stored, removed=self._removed
        )
        self._work = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self._tokens = self._steps = self._step_tokens = 0
        self._since: float | None = None
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
        self.spawn(self._run(), "steps")

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
        self.scheduler.add(sequence)
        reply.on_cancel(functools.partial(self.scheduler.remove, sequence))
        self._work.set()

    def _hashes(self, request: Generate) -> tuple[list[int], list[int]]:
        """Local and sequence hashes of a prompt; `footprint` has asked for those of the same request just before."""
        hashed, self._hashed = self._hashed, None
        if hashed is not None and hashed[0] is request:
            return hashed[1], hashed[2]
        if not self.arguments.enable_prefix_caching:
            return [], []
        local = local_hashes(request.token_ids + request.prior_output, self.arguments.block_size)
        return local, chain(local)

    async def _run(self) -> None:
        ratio, now, scheduler = self.arguments.speedup_ratio, self._now, self.scheduler
        due = now()
        while True:
            if scheduler.idle:
                self._work.clear()
                await self._work.wait()
                due = now()
            self._since = now()
            step = scheduler.step()
            self._steps += 1
            self._step_tokens = step.prefilled + len(step.tokens)
            if ratio:
                due = max(due, now() - _BEHIND) + step.ms / 1000 / ratio
                await asyncio.sleep(max(0.0, due - now()))
            else:
                await asyncio.sleep(0)
            self._since = None
            self._hand_out(step.tokens)

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
        """See Engine."""
        since, scheduler = self._since, self.scheduler
        pool = scheduler.pool.statistics()
        return MockerStatistics(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            tokens=self._tokens,
            steps=self._steps,
            in_step_for=self._now() - since if since is not None else None,
            step_tokens=self._step_tokens if since is not None else 0,
            total_blocks=pool.capacity,
            active_blocks=pool.active,
            cached_blocks=pool.cached,
            hit_rate=self._hit_rate(),
            preemptions=scheduler.preemptions,
        )

    def _hit_rate(self) -> float:
        return self.scheduler.cached_tokens / max(1, self.scheduler.prompt_tokens)

    def load(self) -> Load:
        """See Engine."""
        scheduler = self.scheduler
        pool = scheduler.pool
        return Load(len(scheduler.running), len(scheduler.waiting), pool.active, pool.capacity, self._hit_rate())

    def snapshot(self) -> tuple[FeedItem, ...]:
        """See Engine. A block's name is its sequence hash."""
        names = tuple(self.scheduler.pool.names())
        return Holds(names, names), self.load()

    def footprint(self, request: Generate | Chat) -> tuple[tuple[int, ...], int] | None:
        """See Engine. Ids that another instance has made count as prompt: they have to be computed."""
        assert isinstance(request, Generate)
        local, names = self._hashes(request)
        self._hashed = request, local, names
        length = tokens.count(request.token_ids) + tokens.count(request.prior_output)
        cached = self.scheduler.pool.cached_prefix(names) * self.arguments.block_size
        return tuple(names), length - cached

    def _stored(self, parent: int | None, blocks: Sequence[int]) -> None:
        acting = self.scheduler.acting
        assert acting is not None
        stream: Stream = acting.owner
        self.tell(Stored(parent, tuple(blocks), stream.locals_of(blocks)))

    def _removed(self, blocks: Sequence[int]) -> None:
        self.tell(Removed(tuple(blocks)))
