"""Sets of workers as bits of one int, so that one lookup per block answers for all workers at once."""

from collections.abc import Iterable, Mapping


class Bits:
    """Gives each worker (any int) a bit; bits of workers that left are used again."""

    def __init__(self) -> None:
        self.bit: dict[int, int] = {}
        self._workers: dict[int, int] = {}  # position -> worker
        self._free: list[int] = []

    def of(self, worker: int) -> int:
        """The worker's bit, a new one if it has none."""
        found = self.bit.get(worker)
        if found is None:
            position = self._free.pop() if self._free else len(self._workers)
            self._workers[position] = worker
            found = self.bit[worker] = 1 << position
        return found

    def drop(self, worker: int) -> None:
        """The worker has left; nothing may hold its bit any more."""
        bit = self.bit.pop(worker, None)
        if bit is not None:
            position = bit.bit_length() - 1
            del self._workers[position]
            self._free.append(position)

    def workers(self, mask: int) -> list[int]:
        """The workers in a mask."""
        found: list[int] = []
        while mask:
            low = mask & -mask
            found.append(self._workers[low.bit_length() - 1])
            mask ^= low
        return found


def prefixes(masks: Mapping[int, int], bits: Bits, blocks: Iterable[int]) -> dict[int, int]:
    """How many of the first `blocks` each worker has without a gap; workers without the first one are left out."""
    scores: dict[int, int] = {}
    get = masks.get
    here: int | None = None
    depth = 0
    for block in blocks:
        mask = get(block, 0)
        if here is None:
            here = mask
        elif mask != here:
            left = here & mask
            if left != here:
                for worker in bits.workers(here ^ left):
                    scores[worker] = depth
                here = left
        if not here:
            return scores
        depth += 1
    for worker in bits.workers(here or 0):
        scores[worker] = depth
    return scores
