"""KV blocks of a prompt between engines: what an engine that batches on its own must be able to do.

One engine computes a prompt and exports its full blocks as they are computed. Another holds the request, imports them,
and computes what is missing. An import counts as computing: the blocks are found by the prefix cache afterwards.

Where KV cells cannot be given by positions there is one block, of whatever length: the state after all tokens of the
prompt but the last, under a name of its own. It is imported as a whole or not at all, and no cache has it afterwards.
"""

from collections.abc import Callable
from typing import Protocol

Put = Callable[[int, bytes], None]
"""Takes the next block: its sequence hash and its bytes."""

AskRoom = Callable[[int, Callable[[], object]], bool]
"""Asks for room for the next block, of so many bytes. False: it must not be exported before the callable is called.

The call comes once, when there is room, which is kept for the block. It never comes when the reader has left.
"""


def unlimited(_size: int, _then: Callable[[], object]) -> bool:
    """There is always room."""
    return True


class Room:
    """Room for the blocks of one export, each of `size` bytes. `again` is called when there is some after a wait."""

    def __init__(self, ask: AskRoom, size: int, again: Callable[[], object]) -> None:
        self._ask, self._size, self._again = ask, size, again
        self._granted = self._waits = False

    def there(self) -> bool:
        """Whether the next block may be exported; else `again` will be called."""
        if not (self._granted or self._waits):
            self._granted = self._ask(self._size, self._grant)
            self._waits = not self._granted
        return self._granted

    def take(self) -> bool:
        """As `there`, and the block is exported then: the next one needs other room."""
        there, self._granted = self.there(), False
        return there

    def _grant(self) -> None:
        self._granted, self._waits = True, False
        self._again()


Done = Callable[[Exception | None], None]
"""Called once, when all blocks have been put, or with why no more come."""


class Held(Protocol):
    """A request of which nothing is computed before `go`; until then blocks of its prompt come from elsewhere."""

    @property
    def span(self) -> int:
        """Tokens of a block."""
        ...

    @property
    def first(self) -> int:
        """Blocks at the start of the prompt that are here already, or have been put."""
        ...

    def put(self, name: int, data: bytes) -> bool:
        """Import block `first`, whose sequence hash must be `name`. False: it cannot be taken, continue without."""
        ...

    def go(self) -> None:
        """No more blocks come: compute what is missing. Called again, it does nothing."""

    def cancel(self) -> None:
        """Its reader has left. Does nothing when it has ended."""
