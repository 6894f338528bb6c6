"""The owners of KV cells: blocks in use and blocks cached, and the llama.cpp sequence (slot) that keeps each.

llama.cpp gives cells to sequences, not to blocks: a cell is freed when no sequence holds it any more. So each full
block has an owner, the slot that keeps its cells while no sequence uses them. A sequence that ends leaves its slot to
the blocks that this slot owns. A sequence that takes cached blocks has their cells copied to its own slot (no data
moves) and owns them from then on, so that slots of old turns of a conversation empty themselves.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

from dynamod.kvcache.hashes import PrefixHashes
from dynamod.kvcache.idle import IdleLimit
from dynamod.kvcache.pool import Block, BlockPool, PartialBlock
from dynamod.message import tokens
from dynamod.message.kv_events import Removed, Stored

if TYPE_CHECKING:
    from .scores import Scores
    from .state_handoff import HeldState

Operation = tuple[int, int, int, int]
"""On llama.cpp's cells: source slot (-1: remove), target slot, first position, position after the last (-1: all).

The cells of the source belong to the target too, or those of the target belong to it no more.
"""
REMOVE = -1


class Sequence:
    """`ids`: prompt and answer so far. `computed`: how many of them are in the KV cache, in the cells of `slot`.

    `held`: its blocks, in order: a full and computed one by its sequence hash. `slot`: llama.cpp's number of the
    sequence, -1 while it has none. `gone`: it has ended, or its reader has left. `split`: a step ends before this
    position. `singly`: from this position on, 0: nowhere, each token gets a step of its own. `export`: gets the first
    block that is newly there and the one after the last, and returns the one after the last that it has taken; such a
    sequence ends at its split, which is one token before its end. `state`: comes into its slot when it has one;
    `awaited`: it is on its way, and nothing is computed.
    """

    __slots__ = (
        *(
            "_length",
            "_size",
            "awaited",
            "cached",
            "computed",
            "export",
            "exported",
            "fetched",
            "found",
            "gone",
            "hashes",
            "held",
            "ids",
            "owner",
        ),
        *("scores", "singly", "slot", "split", "state"),
    )

    def __init__(
        self, owner: Any, ids: Seq[int], size: int, hashes: PrefixHashes | None = None, split: int = 0
    ) -> None:
        self.owner = owner
        self.ids = array("i", ids)
        self.computed = 0
        self.cached = 0  # tokens found in the cache at the last admission
        self.found = -1  # tokens not computed here, since the first admission
        self.scores: Scores | None = None  # of the tokens of its prompt, which is then computed as a whole
        self.held: list[Block] = []
        self.slot = -1
        self.gone = False
        self.split = split
        self.singly = 0
        self.export: Callable[[int, int], int] | None = None
        self.exported = 0  # blocks
        self.fetched = False  # blocks came from a tier, or were to
        self.state: HeldState | None = None
        self.awaited = False
        self._size, self._length = size, len(ids)
        self.hashes = PrefixHashes(size) if hashes is None else hashes  # of its first blocks

    @property
    def adapter(self) -> str:
        """Digest of the adapter that computes it; empty: the model alone. Its blocks are salted with that."""
        return self.hashes.salt

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be chosen."""
        return len(self.ids) - self.computed

    @property
    def answers(self) -> bool:
        """Whether it has had a token here."""
        return len(self.ids) > self._length

    def names(self, count: int) -> list[int]:
        """Sequence hashes of the first `count` blocks, which must be full."""
        names, size = self.hashes.blocks, self._size
        if len(names) < count:
            self.hashes.extend(tokens.pack(self.ids[len(names) * size : count * size]))
        return names if len(names) == count else names[:count]

    def name(self, index: int) -> int:
        """Sequence hash of a full block."""
        names = self.hashes.blocks
        return names[index] if index < len(names) else self.names(index + 1)[index]


class Cells:
    """`operate` gets what has to happen to the cells, in order. `publish` gets the events of blocks: blocks that can be
    found from now on, and blocks that cannot any more. `idle`: number of unused blocks that are kept in any case; None:
    all, while there is room.
    """

    def __init__(
        self,
        operate: Callable[[Operation], None],
        *,
        blocks: int,
        size: int,
        slots: int,
        caching: bool = True,
        idle: int | None = None,
        publish: Callable[[Stored | Removed], None] = lambda _event: None,
    ) -> None:
        self.pool = BlockPool(blocks, caching=caching, removed=self._evicted)
        self.size, self.slots, self.caching = size, slots, caching
        self.idle = IdleLimit(blocks if idle is None else idle, blocks)
        self.copying = False  # blocks are being copied to tiers, and `shrink` is called after that
        self._operate, self._publish = operate, publish
        self._free = list(reversed(range(slots)))
        self._open: dict[int, Sequence] = {}
        self._kept: OrderedDict[int, set[int]] = OrderedDict()  # slots of ended sequences, and the blocks they own
        self._owner: dict[int, tuple[int, int]] = {}  # of a named block: slot, and its index in the sequence

    def prefix(self, names: Seq[int], length: int) -> int:
        """How many of a prompt's first blocks need not be computed. The last token must be: it gives the next one."""
        return self.pool.cached_prefix(names[: (length - 1) // self.size])

    def place(self, name: int) -> tuple[int, int] | None:
        """Where a computed block is: a slot that has its cells, and its index in that sequence."""
        return self._owner.get(name)

    def admit(self, sequence: Sequence, spare: int) -> bool:
        """Give a sequence a slot and blocks for all its tokens, the cached ones with their cells.

        False, with nothing changed, when that would leave fewer than `spare` blocks.
        """
        pool, size, length = self.pool, self.size, len(sequence.ids)
        names = sequence.names((length - 1) // size) if self.caching and sequence.scores is None else []
        count = -(-length // size)
        known = self.prefix(names, length)
        if pool.needed(names[:known]) + count - known + spare > pool.free:
            return False
        self.idle.missed(names[known:])
        sequence.slot = slot = self._slot()
        known = self.prefix(names, length)  # again: taking a slot may have dropped some
        held: list[Block] = [*names[:known], *[PartialBlock() for _ in range(count - known)]]
        taken = pool.take(held, 0)
        assert taken
        sequence.held = held
        sequence.computed = sequence.cached = known * size
        self._open[slot] = sequence
        self._adopt(sequence, 0, known)
        return True

    def extend(self, sequence: Sequence) -> int:
        """Take blocks that another sequence has computed since this one was admitted; returns their tokens."""
        size, first = self.size, sequence.computed // self.size
        if not self.caching or sequence.computed % size or sequence.scores is not None:
            return 0
        names = sequence.names((len(sequence.ids) - 1) // size)
        end = first
        while end < len(names) and names[end] in self._owner:
            self._name(sequence, end, names[end])
            end += 1
        if end > first:
            sequence.computed = end * size
            self._adopt(sequence, first, end)
        return (end - first) * size

    def grow(self, sequence: Sequence, position: int) -> bool:
        """Make sure of a cell for the next token, which is at `position`; False when there is none."""
        if len(sequence.held) * self.size > position:
            return True
        block = PartialBlock()
        if not self.pool.take([block], 0):
            return False
        sequence.held.append(block)
        return True

    def fill(self, sequence: Sequence, end: int) -> None:
        """The tokens up to `end` have been computed: blocks that are full now can be found."""
        size, first = self.size, sequence.computed // self.size
        sequence.computed = end
        if not self.caching:
            return
        fresh: list[int] = []  # indices of new blocks that follow each other
        for index in range(first, end // size):
            name = sequence.name(index)
            if name in self._owner:  # computed by another at the same time: one copy is enough
                self._name(sequence, index, name)
                self._operate((REMOVE, sequence.slot, index * size, (index + 1) * size))
                self._adopt(sequence, index, index + 1)
                self._stored(sequence, fresh)
                fresh = []
            else:
                self._name(sequence, index, name)
                self._owner[name] = sequence.slot, index
                fresh.append(index)
        self._stored(sequence, fresh)

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended or gives way. Its full blocks stay cached as long as there is room."""
        slot, size = sequence.slot, self.size
        del self._open[slot]
        self.pool.give_back(sequence.held)
        named = {index: name for index, name in enumerate(sequence.held) if isinstance(name, int)}
        owned = {index: name for index, name in named.items() if self._owner.get(name) == (slot, index)}
        if owned:
            self._kept[slot] = set(owned.values())
            for first, end in _runs(index for index in range(max(owned)) if index not in owned):
                self._operate((REMOVE, slot, first * size, end * size))
            self._operate((REMOVE, slot, (max(owned) + 1) * size, -1))
        else:
            self._operate((REMOVE, slot, 0, -1))
            self._free.append(slot)
        sequence.slot, sequence.held, sequence.computed = -1, [], 0
        if not self.copying:
            self.shrink()

    def shrink(self) -> None:
        """Drop unused blocks, beyond the number that is worth its price."""
        self.pool.shrink(self.idle.blocks)

    def _name(self, sequence: Sequence, index: int, name: int) -> None:
        self.pool.fill(sequence.held[index], name, None)
        sequence.held[index] = name

    def _adopt(self, sequence: Sequence, first: int, end: int) -> None:
        """Copy the cells of blocks in the indices `first` to `end`; what an ended one kept is owned here now."""
        size, slot, owner, held = self.size, sequence.slot, self._owner, sequence.held
        while first < end:
            source, _ = owner[held[first]]  # type: ignore[index]  # these have names
            after = first + 1
            while after < end and owner[held[after]][0] == source:  # type: ignore[index]
                after += 1
            self._operate((source, slot, first * size, after * size))
            kept = self._kept.get(source)
            if kept is not None:
                for index in range(first, after):
                    name = held[index]
                    assert isinstance(name, int)
                    owner[name] = slot, index
                    kept.discard(name)
                self._leave(source, first, after)
            first = after

    def _leave(self, slot: int, first: int, end: int) -> None:
        """An ended sequence's slot keeps some blocks no more; it is free when those were the last."""
        self._operate((REMOVE, slot, first * self.size, end * self.size))
        if not self._kept[slot]:
            del self._kept[slot]
            self._free.append(slot)

    def _slot(self) -> int:
        """A free slot, if need be the one that has kept its blocks longest."""
        if self._free:
            return self._free.pop()
        slot, names = self._kept.popitem(last=False)
        dropped: list[int] = []
        for name in names:
            index = self._owner[name][1]
            user = next((one for one in self._open.values() if one.held[index : index + 1] == [name]), None)
            if user is not None:
                self._owner[name] = user.slot, index
            else:
                del self._owner[name]
                dropped.append(name)
        self._operate((REMOVE, slot, 0, -1))
        self.pool.forget(dropped)
        if dropped:
            self._publish(Removed(tuple(dropped)))
        return slot

    def _evicted(self, names: Seq[int]) -> None:
        """Unused blocks go. Slots of ended sequences have kept all of them."""
        self.idle.evicted(names)
        by_slot: dict[int, list[int]] = {}
        for name in names:
            slot, index = self._owner.pop(name)
            self._kept[slot].discard(name)
            by_slot.setdefault(slot, []).append(index)
        for slot, indices in by_slot.items():
            runs = list(_runs(sorted(indices)))
            for first, end in runs[:-1]:
                self._operate((REMOVE, slot, first * self.size, end * self.size))
            self._leave(slot, *runs[-1])
        self._publish(Removed(tuple(names)))

    def _stored(self, sequence: Sequence, indices: list[int]) -> None:
        if indices:
            parent = sequence.name(indices[0] - 1) if indices[0] else None
            names = tuple([sequence.name(index) for index in indices])
            self._publish(Stored(parent, names, tuple([sequence.hashes.local[index] for index in indices])))


def _runs(indices: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as ranges: first, and one after the last."""
    first = end = -1
    for index in indices:
        if index != end:
            if end > first:
                yield first, end
            first = index
        end = index + 1
    if end > first:
        yield first, end
