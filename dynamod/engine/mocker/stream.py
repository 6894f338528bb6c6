"""One request of the mocker: where its answer goes, what comes next, and the names of its blocks."""

from collections.abc import Callable, Sequence

from dynamod.kvcache.hashes import chain, local_hashes
from dynamod.message import tokens
from dynamod.message.worker import Generate
from dynamod.transport.base import Reply

from .output import Answer


class Stream:
    """One request. `local`, `names`: local and sequence hashes of its full blocks, of prompt and output as it grows."""

    __slots__ = ("_prompt", "_size", "_tokens", "answer", "done", "local", "names", "reply", "send")

    def __init__(
        self, reply: Reply, request: Generate, answer: Answer, size: int, local: list[int], names: list[int]
    ) -> None:
        self.reply = reply
        self.send: Callable[..., None] = reply.tokens
        self.answer = answer
        self.done = tokens.count(request.prior_output)
        self.local, self.names = local, names
        self._prompt = request.token_ids + request.prior_output
        self._tokens = tokens.count(request.token_ids)
        self._size = size

    def name(self, index: int) -> int:
        """Sequence hash of a block whose tokens are all known: the output does not depend on what happens."""
        size, local, names = self._size, self.local, self.names
        while len(names) <= index:
            start = len(names) * size
            ids = self._prompt[4 * start : 4 * (start + size)]
            if len(ids) < 4 * size:
                first, end = max(0, start + len(ids) // 4 - self._tokens), start + size - self._tokens
                self.answer.reach(end)
                ids += b"".join(self.answer.ids[first:end])
            [value] = local_hashes(ids, size)
            names += chain([value], names[-1] if names else None)
            local.append(value)
        return names[index]

    def locals_of(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """Local hashes of blocks of this sequence that follow each other."""
        first = blocks[0]
        place = len(self.names) - 1 if self.names[-1] == first else self.names.index(first)
        return tuple(self.local[place : place + len(blocks)])
