"""The requests at each worker, as a router knows them: its own requests, and the loads that workers publish."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

EXPIRY = 600.0
"""Seconds after which a request that was never finished is no load any more: a lost event must not weigh forever."""


class Load(NamedTuple):
    """A worker's load: KV blocks in use, prompt tokens still to be computed, requests."""

    blocks: int
    prefill: int
    requests: int


class _Request(msgspec.Struct):
    worker: int
    blocks: Sequence[int]
    prefill: int
    since: float
    published: bool


class _Worker:
    __slots__ = ("blocks", "keys", "prefill")

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}  # sequence hash -> requests that use it
        self.prefill = 0
        self.keys: dict[Hashable, None] = {}  # its requests, in order


class ActiveLoad:
    """`start`, `prefill_completed`, `finish` requests under keys of the caller's choice. Unknown keys pass.

    `changed`: workers whose load has changed since the set was last emptied.
    """

    def __init__(self) -> None:
        self._requests: dict[Hashable, _Request] = {}
        self._workers: dict[int, _Worker] = {}
        self._heads: dict[int, dict[int, int]] = {}  # a prompt's first block -> worker -> requests
        self.changed: set[int] = set()

    def start(
        self, key: Hashable, worker: int, blocks: Sequence[int], prefill: int, now: float, *, published: bool = False
    ) -> None:
        """A request goes to a worker: sequence hashes of its full blocks, tokens to compute. A known key is moved.

        `published`: a worker's event says so; `drop_published` ends it.
        """
        self.finish(key)
        self._requests[key] = _Request(worker, blocks, prefill, now, published)
        load = self._workers.get(worker)
        if load is None:
            load = self._workers[worker] = _Worker()
        counts = load.blocks
        get = counts.get
        for block in blocks:
            counts[block] = get(block, 0) + 1
        if blocks:
            heads = self._heads.setdefault(blocks[0], {})
            heads[worker] = heads.get(worker, 0) + 1
        load.prefill += prefill
        load.keys[key] = None
        self.changed.add(worker)

    def prefill_completed(self, key: Hashable) -> None:
        """The request's prompt has been computed."""
        request = self._requests.get(key)
        if request is not None and request.prefill:
            self._workers[request.worker].prefill -= request.prefill
            request.prefill = 0
            self.changed.add(request.worker)

    def finish(self, key: Hashable) -> None:
        """The request is over."""
        request = self._requests.pop(key, None)
        if request is None:
            return
        worker = request.worker
        load = self._workers[worker]
        counts = load.blocks
        for block in request.blocks:
            left = counts[block] - 1
            if left:
                counts[block] = left
            else:
                del counts[block]
        if request.blocks:
            self._forget_head(request.blocks[0], worker)
        load.prefill -= request.prefill
        del load.keys[key]
        if not load.keys:
            del self._workers[worker]
        self.changed.add(worker)

    def _forget_head(self, block: int, worker: int) -> None:
        heads = self._heads[block]
        heads[worker] -= 1
        if not heads[worker]:
            del heads[worker]
            if not heads:
                del self._heads[block]

    def drop_published(self, worker: int) -> None:
        """A worker will state anew which requests it has: end those it has published. Own requests stay."""
        load = self._workers.get(worker)
        if load is not None:
            for key in [key for key in load.keys if self._requests[key].published]:
                self.finish(key)

    def drop(self, worker: int) -> None:
        """A worker is gone, with all its requests."""
        load = self._workers.pop(worker, None)
        if load is not None:
            for key in load.keys:
                blocks = self._requests.pop(key).blocks
                if blocks:
                    self._forget_head(blocks[0], worker)
            self.changed.add(worker)

    def expire(self, now: float) -> int:
        """End requests older than EXPIRY; returns how many."""
        old = [key for key, request in self._requests.items() if now - request.since > EXPIRY]
        for key in old:
            self.finish(key)
        return len(old)

    def of(self, worker: int) -> Load:
        """A worker's load now."""
        load = self._workers.get(worker)
        if load is None:
            return Load(0, 0, 0)
        requests = len(load.keys)
        return Load(len(load.blocks) + requests, load.prefill, requests)  # each has a partial block too

    def at(self, worker: int) -> list[Hashable]:
        """The keys of a worker's requests, in the order of their start."""
        load = self._workers.get(worker)
        return list(load.keys) if load is not None else []

    def users(self, blocks: Sequence[int]) -> Collection[int]:
        """Workers that have any of a prompt's blocks in use."""
        return self._heads.get(blocks[0], {}).keys() if blocks else ()

    def sharing(self, blocks: Sequence[int], workers: Iterable[int]) -> dict[int, int]:
        """How many of a prompt's blocks are in use at those of the workers where it is any.

        Many workers answer with the same system prompt: what one shares is tried first with the next.
        """
        found: dict[int, int] = {}
        users = self.users(blocks)
        if not users:
            return found
        whole, guess = len(blocks), 1
        for worker in workers:
            if worker in users:
                counts = self._workers[worker].blocks
                if blocks[guess - 1] not in counts or (guess < whole and blocks[guess] in counts):
                    guess = _prefix(blocks, counts)
                found[worker] = guess
        return found

    def __len__(self) -> int:
        return len(self._requests)


def _prefix(blocks: Sequence[int], used: Mapping[int, int]) -> int:
    """How many of `blocks` are used. They are a prefix, so halving finds its end; the first one is."""
    low, high = 1, len(blocks)
    while low < high:
        middle = (low + high + 1) // 2
        if blocks[middle - 1] in used:
            low = middle
        else:
            high = middle - 1
    return low
