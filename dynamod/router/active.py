"""What is under way at each worker, as a router knows it: its own requests, and those that workers tell of."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec

EXPIRY = 600.0
"""Seconds after which a request that was never ended is no load any more: a lost word must not weigh for ever."""


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


class _Worker:
    __slots__ = ("blocks", "prefill", "requests")

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}  # sequence hash -> requests that use it
        self.prefill = 0
        self.requests = 0


class ActiveLoad:
    """`begin`, `computed`, `end` of requests under keys of the caller's choice. Unknown keys pass."""

    def __init__(self) -> None:
        self._requests: dict[Hashable, _Request] = {}
        self._workers: dict[int, _Worker] = {}

    def begin(self, key: Hashable, worker: int, blocks: Sequence[int], prefill: int, now: float) -> None:
        """A request goes to a worker: sequence hashes of its full blocks, tokens to compute. A known key is moved."""
        self.end(key)
        self._requests[key] = _Request(worker, blocks, prefill, now)
        load = self._workers.get(worker)
        if load is None:
            load = self._workers[worker] = _Worker()
        counts = load.blocks
        get = counts.get
        for block in blocks:
            counts[block] = get(block, 0) + 1
        load.prefill += prefill
        load.requests += 1

    def computed(self, key: Hashable) -> None:
        """The request's prompt has been computed."""
        request = self._requests.get(key)
        if request is not None and request.prefill:
            self._workers[request.worker].prefill -= request.prefill
            request.prefill = 0

    def end(self, key: Hashable) -> None:
        """The request is over."""
        request = self._requests.pop(key, None)
        if request is None:
            return
        load = self._workers[request.worker]
        counts = load.blocks
        for block in request.blocks:
            left = counts[block] - 1
            if left:
                counts[block] = left
            else:
                del counts[block]
        load.prefill -= request.prefill
        load.requests -= 1
        if not load.requests:
            del self._workers[request.worker]

    def drop(self, worker: int) -> None:
        """A worker is gone, with all that was under way there."""
        if self._workers.pop(worker, None) is not None:
            self._requests = {key: one for key, one in self._requests.items() if one.worker != worker}

    def expire(self, now: float) -> int:
        """End requests older than EXPIRY; returns how many."""
        old = [key for key, request in self._requests.items() if now - request.since > EXPIRY]
        for key in old:
            self.end(key)
        return len(old)

    def of(self, worker: int) -> Load:
        """A worker's load now."""
        load = self._workers.get(worker)
        if load is None:
            return Load(0, 0, 0)
        return Load(len(load.blocks) + load.requests, load.prefill, load.requests)  # each has a partial block too

    def shared(self, worker: int, blocks: Sequence[int]) -> int:
        """How many of a prompt's blocks are in use at a worker. They are a prefix, so halving finds the end."""
        load = self._workers.get(worker)
        if load is None or not blocks or blocks[0] not in load.blocks:
            return 0
        low, high = 1, len(blocks)
        counts = load.blocks
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in counts:
                low = middle
            else:
                high = middle - 1
        return low

    def __len__(self) -> int:
        return len(self._requests)
