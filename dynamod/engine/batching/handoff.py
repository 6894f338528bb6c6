"""KV blocks of a prompt between engines: what an engine that batches by itself must be able to do.

One engine computes a prompt and exports its full blocks as they are computed. Another holds the request, imports them,
and computes what is missing. An import counts as computing: the blocks are found by the prefix cache afterwards.
"""

from collections.abc import Callable
from typing import Protocol

from dynamod.message.worker import Generate
from dynamod.transport.base import Reply

Put = Callable[[int, bytes], None]
"""Takes the next block: its sequence hash and its bytes."""

Done = Callable[[Exception | None], None]
"""Called once, when all blocks have been put, or with why no more come."""


class Held(Protocol):
    """A request of which nothing is computed before `go`; until then blocks of its prompt come from elsewhere."""

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


class Blocks(Protocol):
    """An engine with the capability `handoff`: it exports and imports KV blocks.

    All calls come from the event loop and must not block.
    """

    def layout(self) -> str:
        """Digest of all that must agree for the bytes of a block to mean the same: weights, types, block size."""
        ...

    def export(self, request: Generate, put: Put, done: Done) -> Callable[[], object]:
        """Compute the full blocks of a prompt (with its prior output) but for its last token; returns what cancels it.

        Blocks that are in the cache are not computed again. Each is put as soon as it is there, in order.
        """
        ...

    def hold(self, request: Generate, reply: Reply, limit: int) -> Held:
        """As `BatchingEngine.queue`, but compute nothing yet."""
        ...

    def adopt(self, request: Generate, reply: Reply) -> Held | None:
        """See `BatchingEngine.adopt`."""
        ...
