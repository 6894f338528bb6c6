"""How many more workers the memory budget of a node has room for."""

from collections.abc import Mapping

import msgspec

from dynamod.message.pools import Pool


class MemoryBudget:
    """`limit`: bytes of the workers of all pools on a node. A worker takes what the largest of its pool has taken.

    What a pool's workers take is known when one of them is ready: until then it gets one at a time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._each: dict[str, int] = {}  # by component, what a worker takes

    def bound(self, pools: Mapping[str, Pool]) -> dict[str, Pool]:
        """The pools of a node, by component, with as many `free` places as there is memory for."""
        for name, pool in pools.items():
            largest = max((one.memory for one in pool.replicas if one.state == "Ready"), default=0)
            self._each[name] = largest or self._each.get(name, 0)
        left = self.limit - sum(
            max(one.memory, self._each[name]) for name, pool in pools.items() for one in pool.replicas
        )
        found: dict[str, Pool] = {}
        for name, pool in pools.items():
            each = self._each[name]
            room = max(0, left) // each if each else int(left > 0 and not pool.replicas)
            free = room if pool.free is None else min(room, pool.free)
            found[name] = msgspec.structs.replace(pool, free=free)
        return found
