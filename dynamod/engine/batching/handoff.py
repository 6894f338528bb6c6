"""KV blocks of a prompt between engines: what an engine that batches by itself must be able to do.

One engine computes a prompt and exports its full blocks as they are computed. Another holds the request, imports them,
and computes what is missing. An import counts as computing: the blocks are found by the prefix cache afterwards.

Where KV cells cannot be given by positions there is one block, of whatever length: the state behind all tokens of the
prompt but the last, under a name of its own. It is imported as a whole or not at all, and no cache has it afterwards.
"""

from collections.abc import Callable
from typing import Protocol

Put = Callable[[int, bytes], None]
"""Takes the next block: its sequence hash and its bytes."""

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
        """Import block `first`, whose sequence hash must be `name`. False: it cannot be taken, go on without more."""
        ...

    def go(self) -> None:
        """No more blocks come: compute what is missing. Called again, it does nothing."""

    def cancel(self) -> None:
        """Its reader has left. Does nothing when it has ended."""
