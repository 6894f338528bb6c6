"""Engines that move the KV blocks of prompts on their own, from the instance that computes to the one that answers.

The one that computes says what the other one must know (`Handoff.params`). The one that answers gets that with its
request, and its engine fetches the blocks. With *pull* it is said when the prompt has been computed, with *rendezvous*
at once, and both work on the request at the same time.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

from xxhash import xxh3_128_hexdigest

from dynamod.message.worker import Generate, TransferShape

Ready = Callable[[dict[str, Any]], None]
"""Takes what the engine that answers must know: values that msgpack can write."""


class OwnTransfer(ABC):
    """The blocks that an engine gives and takes. The engine counts; `failed` by the words of `transfer.base.Kind`.

    `layout`: digest of what must agree between two engines, see `digest`. `expired`: prompts that no engine has read
    in time. `bytes` and `seconds` are those of transfers to here.
    """

    shape: TransferShape = "pull"

    def __init__(self, layout: str) -> None:
        self.layout = layout
        self.transfers = self.bytes = self.expired = 0
        self.seconds = 0.0
        self.failed: Counter[str] = Counter()

    @abstractmethod
    async def prefill(self, request: Generate, ready: Ready) -> None:
        """Compute a prompt, with its prior output, for another instance; call `ready` once.

        Returns when the blocks have been read. Cancelled: they are needed no more, whether they have been read or not.
        Raises RequestError.
        """


def digest(*parts: object) -> str:
    """A layout of what decides what the bytes of blocks mean: engine, version, model, types, sizes."""
    return xxh3_128_hexdigest(repr(parts).encode())
