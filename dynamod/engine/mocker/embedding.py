"""Made-up vectors: each is a hash of its ids, at the speed at which a real engine computes a prompt of that length."""

import asyncio
import hashlib
from array import array

from dynamod.message import tokens, vectors
from dynamod.message.worker import Embed
from dynamod.transport.base import Reply

from .timing import Timing


def vector(ids: bytes, length: int, seed: int = 0) -> bytes:
    """A packed vector of unit length. Equal ids have equal ones, others are as far apart as chance has it."""
    digest = hashlib.shake_128(ids + seed.to_bytes(8, "little", signed=True)).digest(2 * length)
    numbers = [2 * number - 65535 for number in array("H", digest)]  # odd, so that none is zero
    return vectors.pack(vectors.unit(numbers))


class Embedder:
    """Answers requests one after the other. `ratio`: as `speedup_ratio`."""

    def __init__(self, timing: Timing, ratio: float, length: int, seed: int) -> None:
        self._timing, self._ratio, self._length, self._seed = timing, ratio, length, seed
        self._free_at = 0.0  # the loop's time
        self.open = 0

    async def answer(self, request: Embed, reply: Reply) -> None:
        """Wait for what was asked before, and for the time that this takes."""
        now = asyncio.get_running_loop().time()
        if self._ratio:
            ms = self._timing.prefill_ms(sum(map(tokens.count, request.inputs)))
            self._free_at = max(now, self._free_at) + ms / 1000 / self._ratio
        self.open += 1
        try:
            await asyncio.sleep(max(0.0, self._free_at - now))
        finally:
            self.open -= 1
        reply.items(tuple([vector(ids, self._length, self._seed) for ids in request.inputs]), "stop")
