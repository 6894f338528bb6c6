"""How many unused blocks are worth keeping, where each one makes every step slower."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from dynamod.observe.bounded import bounded

EARNS = 4
"""One of so many blocks that went must be asked for again, or fewer are kept from then on."""


class IdleLimit:
    """`least` and `most`: blocks. More than `least` are kept while removed blocks are asked for again.

    llama.cpp's attention looks at all cells up to the last one in use, of any sequence. On a CPU (a model of 100M
    parameters) 6,000 idle cells cost 9 % of a step.
    """

    def __init__(self, least: int, most: int) -> None:
        self.blocks = self._least = min(least, most)
        self._most = most
        self._gone: OrderedDict[int, None] = OrderedDict()  # the last ones
        self._unused = 0
        bounded(self, "removed KV blocks", most, lambda one: len(one._gone), "blocks")

    def evicted(self, names: Iterable[int]) -> None:
        """These went."""
        for name in names:
            self._gone[name] = None
            self._gone.move_to_end(name)
            self._unused += 1
        while len(self._gone) > self._most:
            self._gone.popitem(last=False)
        self.blocks = max(self._least, self.blocks - self._unused // EARNS)
        self._unused %= EARNS

    def missed(self, names: Sequence[int]) -> None:
        """A prompt needs these blocks after its cached ones. Removed blocks among them should have been kept."""
        for name in names:
            if name not in self._gone:
                break
            del self._gone[name]
            self.blocks = min(self._most, self.blocks + 1)
