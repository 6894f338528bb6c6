"""The KV cache of an engine that names its blocks itself: its events in the form that routers take."""

import logging
from collections.abc import Callable, Sequence

from dynamod.kvcache.hashes import block_hashes, chain
from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.message.kv_events import ForwardPass, Load, Removed, Snapshot, Stored, WorkerEvent

log = logging.getLogger("dynamod.kvcache")

Publish = Callable[[WorkerEvent], None]


class BlockRegistry:
    """One per component. Engines report blocks, endpoints publish the events. Without a report routers guess.

    Blocks have the engine's own names (unsigned 64 bits); their content is given by the hashes of their tokens. `load`:
    what the engine last reported. `stepped` are called with each step that it reports. Not for two threads.
    """

    def __init__(self, component: str) -> None:
        self.component = component
        self.load: Load | None = None
        self.stepped: set[Callable[[ForwardPass], None]] = set()
        self._block_size = 0  # tokens; 0: no block was reported
        self._names: dict[int, int] = {}  # name -> sequence hash
        self._held: dict[int, int] = {}  # sequence hash -> how many names it has
        self._endpoints: dict[Publish, tuple[str, int]] = {}  # with the endpoint's model and its block size

    @property
    def publishes(self) -> bool:
        """Whether an engine reports its blocks."""
        return self._block_size > 0

    def serve(self, model: str, block_size: int, publish: Publish) -> None:
        """An endpoint serves a model by this cache. Raises UserError when blocks have another size."""
        self._agree(self._block_size, model, block_size)
        self._endpoints[publish] = model, block_size

    def leave(self, publish: Publish) -> None:
        """The endpoint ends. An unknown one passes."""
        self._endpoints.pop(publish, None)

    def publish(self, block_size: int) -> None:
        """An engine begins to report its blocks. Raises UserError when blocks have another size."""
        if self._block_size not in (0, block_size):
            problem = f"publishes blocks of {self._block_size} tokens already, not {block_size}"
            hint = "give all publishers of a component the same kv_block_size"
            raise UserError(f"component {self.component} {problem}", hint)
        for model, size in self._endpoints.values():
            self._agree(block_size, model, size)
        self._block_size = block_size
        self._publish(Snapshot((), ()))  # routers need not guess any more

    def stored(self, parent: int | None, names: Sequence[int], local: Sequence[int]) -> None:
        """New blocks with their local hashes, after block `parent`. Without the parent their prefix is unknown."""
        before = None
        if parent is not None and (before := self._names.get(parent)) is None:
            log.warning("%d blocks are not published: their parent block %d is not known", len(names), parent)
            return
        for name, block in zip(names, chain(local, before), strict=True):
            if self._names.get(name) != block:
                self._forget(name)
                self._names[name] = block
                self._held[block] = self._held.get(block, 0) + 1
        self._publish(Stored(parent, tuple(names), tuple(local)))

    def removed(self, names: Sequence[int]) -> None:
        """Blocks left the cache; unknown ones are ignored."""
        gone = tuple(name for name in names if self._forget(name))
        if gone:
            self._publish(Removed(gone))

    def snapshot(self) -> tuple[WorkerEvent, ...]:
        """The blocks of the cache, for a new subscriber; nothing when no engine reports them."""
        if not self.publishes:
            return ()
        return (Snapshot(tuple(self._names), tuple(self._names.values())),)

    def footprint(self, ids: bytes) -> tuple[tuple[int, ...], int] | None:
        """For packed token ids: sequence hashes of their full blocks, and how many tokens are not in the cache now."""
        if not self.publishes:
            return None
        blocks = block_hashes(ids, self._block_size)
        cached = next((depth for depth, block in enumerate(blocks) if block not in self._held), len(blocks))
        return tuple(blocks), tokens.count(ids) - cached * self._block_size

    def _forget(self, name: int) -> bool:
        block = self._names.pop(name, None)
        if block is None:
            return False
        self._held[block] -= 1
        if not self._held[block]:
            del self._held[block]
        return True

    def _publish(self, event: WorkerEvent) -> None:
        for publish in self._endpoints:
            publish(event)

    def _agree(self, published: int, model: str, block_size: int) -> None:
        if published and published != block_size:
            problem = f"publishes blocks of {published} tokens, model {model!r} has {block_size}"
            raise UserError(
                f"component {self.component} {problem}", f"register_llm(..., kv_cache_block_size={published})"
            )
