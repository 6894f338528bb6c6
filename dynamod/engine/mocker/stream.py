"""One request of the mocker: where its answer goes, what comes next, and the names of its blocks."""

from collections.abc import Callable, Sequence

from dynamod.kvcache.hashes import PrefixHashes
from dynamod.message import tokens
from dynamod.message.worker import Generate
from dynamod.transport.base import Reply

from .output import OutputIds


class Stream:
    """One request. `hashes`: of its full blocks, of prompt and output as it grows; `done`: tokens of the answer."""

    __slots__ = ("_prompt", "_size", "_tokens", "done", "hashes", "output", "reply", "send")

    def __init__(self, reply: Reply, request: Generate, output: OutputIds, size: int, hashes: PrefixHashes) -> None:
        self.reply = reply
        self.send: Callable[..., None] = reply.tokens
        self.output = output
        self.done = tokens.count(request.prior_output)
        self.hashes = hashes
        self._prompt = request.token_ids + request.prior_output
        self._tokens = tokens.count(request.token_ids)
        self._size = size

    def name(self, index: int) -> int:
        """Sequence hash of a block whose tokens are all known: the output does not depend on what happens."""
        size, blocks = self._size, self.hashes.blocks
        while len(blocks) <= index:
            start = len(blocks) * size
            ids = self._prompt[4 * start : 4 * (start + size)]
            if len(ids) < 4 * size:
                first, end = max(0, start + len(ids) // 4 - self._tokens), start + size - self._tokens
                self.output.reach(end)
                ids += b"".join(self.output.ids[first:end])
            self.hashes.extend(ids)
        return blocks[index]

    def locals_of(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """Local hashes of blocks of this sequence that follow each other."""
        names, first = self.hashes.blocks, blocks[0]
        index = len(names) - 1 if names[-1] == first else names.index(first)
        return tuple(self.hashes.local[index : index + len(blocks)])
