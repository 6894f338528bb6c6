"""Continuous batching without a model: which sequences run in an iteration, what it costs, which blocks it takes.

Pure: no clock, no tasks. `Scheduler.step` decides one iteration and performs it at once. The caller waits for the time
that the iteration takes, then hands out its tokens: the engine in real time, the replay in virtual time.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dynamod.kvcache.pool import Block, BlockPool, PartialBlock
from dynamod.kvcache.store import BlockStore

from ..batching.scheduler import BatchScheduler
from ..batching.steps import Chunk
from .arguments import SchedulerSettings
from .tiers import Load, Loads
from .timing import Timing

LOOK = 1.0
"""Milliseconds of an iteration that only waits for blocks of tiers, at most: a new request waits for its end."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request. `blocks`: sequence hashes of the prompt's full blocks; `length`: tokens of the prompt.

    `name(index)` gives the sequence hash of the block `index` once the output has filled it, None when it has none.
    With `max_tokens` 0 it ends when its prompt is computed.
    """

    owner: Any
    blocks: Seq[int]
    length: int
    max_tokens: int
    name: Callable[[int], int | None]
    computed: int = 0  # tokens of prompt and output in the cache
    generated: int = 0
    cached: int = 0  # tokens found in the cache at the last admission
    found: int = -1  # of these not computed again, at the first one
    fetched: bool = False  # blocks came from a tier
    held: list[Block] = field(default_factory=list[Block])

    @property
    def total(self) -> int:
        """Tokens that must be in the cache before the next one can be made."""
        return self.length + self.generated


class Step(msgspec.Struct, frozen=True):
    """One iteration: how long it takes, and which sequences have a new token at its end.

    `finished`: of these, and of the prompts without an answer. `context`: KV tokens of sequences whose prompts had been
    computed before. `chunks`: the parts of prompts.
    """

    ms: float
    tokens: list[Sequence]
    finished: list[Sequence]
    prefilled: int
    context: int = 0
    chunks: Seq[tuple[Sequence, Chunk]] = ()


class Scheduler(BatchScheduler[Sequence]):
    """Waiting and running sequences over a pool of blocks.

    `acting`: the sequence whose blocks are being taken or filled while `stored` is called. `tiers`: without bytes; a
    prompt whose next blocks are there waits until they would be here, while others run.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        timing: Timing,
        *,
        stored: Callable[[int | None, Seq[int]], None] = lambda _parent, _blocks: None,
        removed: Callable[[Seq[int]], None] = lambda _blocks: None,
        tiers: BlockStore | None = None,
    ) -> None:
        super().__init__(
            BlockPool(settings.num_gpu_blocks, caching=settings.enable_prefix_caching, stored=stored, removed=removed)
        )
        self._settings, self._timing = settings, timing
        self.acting: Sequence | None = None
        self._loads = None if tiers is None else Loads(tiers, settings)
        self._capacity = settings.num_gpu_blocks * settings.block_size  # tokens

    def fits(self, length: int) -> bool:
        """Whether a prompt of that length can ever run."""
        return -(-(length + 1) // self._settings.block_size) <= self._settings.usable_blocks

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        super().add(sequence)
        if self._loads is not None:
            self._loads.tiers.ask(sequence.blocks)

    def remove(self, sequence: Sequence) -> None:
        """It has ended, or its reader has left. Does nothing the second time."""
        super().remove(sequence)
        if self._loads is not None and (load := self._loads.drop(sequence)) is not None:
            self.pool.give_back(load.held)

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return super().idle and not (self._loads is not None and self._loads.all)

    def uncached(self, blocks: Seq[int], length: int) -> int:
        """Tokens of a prompt that are neither in the cache nor in tiers. `blocks`: its full blocks."""
        here = self.pool.cached_prefix(blocks)
        if self._loads is not None:
            here += self._loads.tiers.found(blocks[here:])
        return length - here * self._settings.block_size

    def lengths(self) -> tuple[list[int], list[int]]:
        """Tokens of each prompt that waits, and of each answer that gave way to others."""
        waiting = self.waiting
        return [one.total for one in waiting if not one.generated], [one.total for one in waiting if one.generated]

    @property
    def begun(self) -> int:
        """Tokens that are still to be computed, of sequences that run."""
        return sum([one.length + one.generated - one.computed for one in self.running])

    def step(self) -> Step:
        """One iteration. When all that is there waits for blocks of tiers, a part of that time passes."""
        if self._loads is None:
            return self._step()
        for load in self._loads.take():
            self._loaded(load)
        step = self._step()
        if self._loads.all and not step.ms:
            step = msgspec.structs.replace(step, ms=min(self._loads.wait, LOOK))
        self._loads.advance(step.ms)
        return step

    def _step(self) -> Step:
        # The sum of `total` is written out and `_grow` is asked only where a block is missing: each is done for every
        # token of a replay.
        size = self._settings.block_size
        decoding = [one for one in self.running if one.computed >= one.length + one.generated]
        context = sum([one.length + one.generated for one in decoding])
        chunks: list[tuple[Sequence, Chunk]] = []
        prefilled = 0
        if self.waiting or len(decoding) < len(self.running):
            prefilled = self._prefill(chunks)
            decoding = [one for one in self.running if one.computed >= one.length + one.generated]
        ms = self._timing.prefill_ms(prefilled) if prefilled else 0.0
        tokens: list[Sequence] = []
        finished: list[Sequence] = []
        if context:  # sequences that were prefilled in this iteration have their first tokens
            ms += self._timing.decode_ms(context / self._capacity)
        for sequence in decoding:
            total = sequence.length + sequence.generated
            if sequence.computed < total:
                continue  # it gave its blocks to another
            if not sequence.max_tokens:
                finished.append(sequence)
                continue
            if len(sequence.held) <= total // size and not self._grow(sequence):
                continue
            sequence.generated += 1
            total += 1
            if not total % size:
                self._name_last(sequence, total // size - 1)
            tokens.append(sequence)
            if sequence.generated >= sequence.max_tokens:
                finished.append(sequence)
            else:
                sequence.computed += 1
        if finished:
            done = set(map(id, finished))
            self.running = [sequence for sequence in self.running if id(sequence) not in done]
            for sequence in finished:
                self.free(sequence)
        return Step(ms, tokens, finished, prefilled, context, chunks)

    def insert(self, before: Block | None, block: int) -> bool:
        """Use a block that was computed elsewhere; it follows `before`, which is in use. False: there is no room."""
        pair = [block] if before is None else [before, block]
        if self.pool.active + self.pool.needed(pair) > self._settings.usable_blocks or not self.pool.take(pair):
            return False
        self.pool.give_back(pair[:-1])
        return True

    def _load(self, sequence: Sequence, blocks: list[Block], loads: Loads) -> bool:
        """Whether the oldest waiting sequence, with all its room, waits for blocks of tiers from now on."""
        here = self.pool.cached_prefix(blocks)
        names = () if sequence.fetched else sequence.blocks[here:]
        if not names or not (count := loads.tiers.found(names)):
            return False
        room = _room(sequence, blocks, self._settings.block_size)
        held = [*blocks[:here], *[PartialBlock() for _ in range(len(room) - here)]]
        if self.pool.active + self.pool.needed(held) > self._settings.usable_blocks or not self.pool.take(held, here):
            return False
        sequence.fetched = True
        loads.begin(self.waiting.popleft(), held, here, names[:count])
        return True

    def _loaded(self, load: Load) -> None:
        """All its blocks are here: its turn had come."""
        self.acting = load.sequence
        for index, name in enumerate(load.names, load.here):
            before = load.held[index - 1] if index else None
            self.pool.fill(load.held[index], name, before if isinstance(before, int) else None)
            load.held[index] = name
        self.pool.give_back(load.held)
        self.waiting.appendleft(load.sequence)

    def _prefill(self, chunks: list[tuple[Sequence, Chunk]]) -> int:
        """Continue the prompt that is half computed, then admit from the queue while budget and blocks last.

        Returns how many tokens are computed, and adds the parts of prompts to `chunks`.
        """
        settings = self._settings
        budget = settings.max_num_batched_tokens
        for sequence in self.running:
            missing = sequence.total - sequence.computed
            if missing > 0:
                chunk = min(missing, budget)
                chunks.append((sequence, Chunk(sequence.total, sequence.computed, chunk)))
                sequence.computed += chunk
                budget -= chunk
        while self.waiting and len(self.running) < settings.max_num_seqs and budget > 0:
            sequence = self.waiting[0]
            blocks = self._named(sequence)
            if self._loads is not None and self._load(sequence, blocks, self._loads):
                continue
            cached = min(self.pool.cached_prefix(blocks) * settings.block_size, sequence.total)
            missing = max(1, sequence.total - cached)  # the last token gives the next one
            if missing > budget and not settings.enable_chunked_prefill and budget < settings.max_num_batched_tokens:
                break
            if not self._admit(sequence, blocks, cached):
                break
            if sequence.found < 0:
                sequence.found = sequence.total - missing
            chunk = min(missing, budget) if settings.enable_chunked_prefill else missing
            chunks.append((sequence, Chunk(sequence.total, sequence.total - missing, chunk)))
            sequence.computed = sequence.total - missing + chunk
            budget -= chunk
        return settings.max_num_batched_tokens - budget

    def _named(self, sequence: Sequence) -> list[Block]:
        """Blocks that the sequence needs at admission: a preempted one also those of its output."""
        size = self._settings.block_size
        blocks: list[Block] = list(sequence.blocks)
        for index in range(len(blocks), sequence.total // size):
            name = sequence.name(index)
            blocks.append(PartialBlock() if name is None else name)
        return blocks

    def _admit(self, sequence: Sequence, blocks: list[Block], cached: int) -> bool:
        full, blocks = len(blocks), _room(sequence, blocks, self._settings.block_size)
        if self.pool.active + self.pool.needed(blocks) > self._settings.usable_blocks:
            return False
        sequence.cached = cached
        self.acting = sequence
        if not self.pool.take(blocks, full):
            return False
        sequence.held = blocks
        self.admitted(sequence.total, sequence.cached)
        if self._loads is not None:
            self._loads.copy(blocks[:full])
        return True

    def _grow(self, sequence: Sequence) -> bool:
        """Take a block for the next token; False when the sequence itself had to give way."""
        block = PartialBlock()
        while not self.pool.take([block], 0):
            victim = self._victim(sequence)
            self.preempt(victim)
            if victim is sequence:
                return False
        sequence.held.append(block)
        return True

    def _victim(self, sequence: Sequence) -> Sequence:
        """Returns the sequence that gives way to `sequence`: the newest, perhaps itself; or the oldest other one.

        Were the oldest `sequence` itself, two sequences could give way to each other without end. A sequence that has
        had its last token in this iteration is left out: its blocks are free at the end.
        """
        if self._settings.preemption_mode == "lifo":
            return self.running[-1]
        others = (one for one in self.running if one is not sequence and one.generated < one.max_tokens)
        return next(others, sequence)

    def _name_last(self, sequence: Sequence, index: int) -> None:
        name = sequence.name(index)
        if name is not None:
            before = sequence.held[index - 1] if index else None
            self.acting = sequence
            self.pool.fill(sequence.held[index], name, before if isinstance(before, int) else None)
            sequence.held[index] = name
            if self._loads is not None:
                self._loads.copy((name,))

    def free(self, sequence: Sequence) -> None:
        """Its tokens are no longer computed."""
        self.pool.give_back(sequence.held)
        sequence.held, sequence.computed = [], 0


def _room(sequence: Sequence, blocks: list[Block], size: int) -> list[Block]:
    """The blocks of a sequence, with the one that is not full. `size`: tokens of a block."""
    return [*blocks, PartialBlock()] if sequence.total % size else blocks
