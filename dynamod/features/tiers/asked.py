"""Counts how often blocks were asked for: a block that was asked for once is not worth a copy."""

from collections import OrderedDict
from collections.abc import Sequence

from dynamod.observe.bounded import bounded

MOST = 100_000
"""Blocks that are remembered, about 100 bytes each; the least recently asked ones are forgotten."""


class Asked:
    """Counts up to `enough`; a prompt asks for each of its blocks once."""

    def __init__(self, enough: int, most: int = MOST) -> None:
        self.enough = enough
        self._most = most
        self._counts: OrderedDict[int, int] = OrderedDict()
        bounded(self, "KV blocks asked for", most, len, "blocks")

    def ask(self, names: Sequence[int]) -> None:
        """A prompt has these blocks. With `enough` 1 nothing need be counted."""
        counts, enough = self._counts, self.enough
        if enough <= 1:
            return
        get, move = counts.get, counts.move_to_end
        for name in names:
            count = get(name, 0)
            if count < enough:
                counts[name] = count + 1
            if count:
                move(name)
        while len(counts) > self._most:
            counts.popitem(last=False)

    def often(self, name: int) -> bool:
        """Whether a block was asked for often enough."""
        return self.enough <= 1 or self._counts.get(name, 0) >= self.enough

    def __len__(self) -> int:
        return len(self._counts)
