"""Sets of workers as bits of one int, so that one lookup per block answers for all workers at once."""

from collections.abc import Callable, Iterable
from itertools import compress

MANY = 32
"""Bitset above which a mask is read digit by digit: taking one bit off costs as much as the mask is long."""

_DIGITS = bytes(value == ord("1") for value in range(256))


class Bitset:
    """Gives each worker (any int) a bit; bits of workers that left are used again."""

    def __init__(self) -> None:
        self.bit: dict[int, int] = {}
        self._workers: list[int] = []  # by position; a free position keeps its last worker
        self._free: list[int] = []

    def of(self, worker: int) -> int:
        """The worker's bit, a new one if it has none."""
        found = self.bit.get(worker)
        if found is None:
            if self._free:
                position = self._free.pop()
                self._workers[position] = worker
            else:
                position = len(self._workers)
                self._workers.append(worker)
            found = self.bit[worker] = 1 << position
        return found

    def drop(self, worker: int) -> None:
        """The worker has left; nothing may hold its bit any more."""
        bit = self.bit.pop(worker, None)
        if bit is not None:
            self._free.append(bit.bit_length() - 1)

    def note(self, mask: int, depth: int, depths: dict[int, int]) -> None:
        """Put the depth of each worker in a mask."""
        workers = self._workers
        if mask.bit_count() > MANY:
            many = compress(workers, bin(mask)[:1:-1].encode().translate(_DIGITS))
            depths.update(dict.fromkeys(many, depth))
            return
        while mask:  # from the highest: the number becomes shorter
            place = mask.bit_length() - 1
            depths[workers[place]] = depth
            mask ^= 1 << place


def prefixes(get: Callable[[int, int], int], bits: Bitset, blocks: Iterable[int]) -> dict[int, int]:
    """How many of the first `blocks` each worker has without a gap; workers without the first one are left out.

    `get(block, 0)`: the mask of the workers that have a block.
    """
    depths: dict[int, int] = {}
    here: int | None = None
    depth = 0
    for block in blocks:
        mask = get(block, 0)
        if here is None:
            here = mask
        elif mask != here:
            left = here & mask
            gone = here ^ left
            if gone:
                bits.note(gone, depth, depths)
                here = left
        if not here:
            return depths
        depth += 1
    bits.note(here or 0, depth, depths)
    return depths
