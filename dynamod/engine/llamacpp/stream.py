"""One request of the engine: where its answer goes, and when it ends."""

from dynamod.message import tokens
from dynamod.message.worker import Generate
from dynamod.transport.base import Reply

from .request import ParsedRequest
from .sampling import Picked, Sampler
from .sequence import Sequence


class Stream:
    """`done`: tokens of the answer, those of other instances too; `limit`: how many it may have."""

    __slots__ = ("_ends", "_fresh", "_min", "done", "limit", "reply", "request", "sampler", "sequence")

    def __init__(
        self, request: Generate, reply: Reply, sampler: Sampler, sequence: Sequence, parsed: ParsedRequest
    ) -> None:
        self.request, self.reply, self.sampler, self.sequence = request, reply, sampler, sequence
        self.done, self.limit = len(parsed.prior), parsed.limit
        self._ends = parsed.ends
        self._min = request.stops.min_tokens or 0
        self._fresh = True

    def take(self, picked: Picked) -> tuple[bool, str | None]:
        """A new token: whether it is the first here, and why the answer ends with it if it does."""
        index = picked.index
        first, self._fresh = self._fresh, False
        self.done += 1
        self.sampler.take(index)
        self.sequence.ids.append(index)
        if index in self._ends and self.done >= self._min:
            return first, "stop"
        return first, "length" if self.done >= self.limit else None

    def send(self, picked: Picked, finish: str | None) -> None:
        """Send it to the reader."""
        if picked.logprob is not None:
            self.reply.logprobs((picked.logprob,), (picked.top,) if picked.top else ())
        self.reply.tokens(tokens.pack((picked.index,)), 1, finish)
