"""One request of the engine: what it asks for, where its answer goes, and when it ends."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from dynamod.message import tokens
from dynamod.message.errors import BadRequest
from dynamod.message.worker import Generate
from dynamod.preprocess.conditions import check_token_ids
from dynamod.transport.base import Reply

from .sampling import Picked, Sampler

if TYPE_CHECKING:
    from dynamod.structured.matcher import Matcher


def checked(request: Generate, vocabulary: int) -> tuple[Sequence[int], Sequence[int]]:
    """The ids of the prompt and of the prior output. Raises BadRequest: other senders than the frontend may not check.

    `vocabulary`: ids there are.
    """
    try:
        prompt, prior = tokens.unpack(request.token_ids), tokens.unpack(request.prior_output)
    except ValueError:
        raise BadRequest("the token ids cannot be read") from None
    for name, ids in (("token_ids", prompt), ("prior_output", prior)):
        check_token_ids(ids, name, vocabulary)
    return prompt, prior


def exportable(request: Generate, vocabulary: int, room: int) -> int:
    """Tokens of a prompt, with its prior output, that is computed for another worker. Raises BadRequest.

    `vocabulary`: ids there are. `room`: tokens that fit.
    """
    prompt, prior = checked(request, vocabulary)
    length = len(prompt) + len(prior)
    if not prompt or length > room:
        raise BadRequest(f"a prompt of {length} tokens; this worker has room for {room}")
    return length


class Stream:
    """`done`: tokens of the answer, those of other instances too; `limit`: how many it may have.

    `vocabulary`: ids there are. `matcher`: of the form that the answer keeps to, at its start. Raises BadRequest, and
    EngineFailed where the prior output has not that form.
    """

    __slots__ = ("_ends", "_fresh", "_min", "done", "limit", "reply", "request", "sampler")

    def __init__(
        self, request: Generate, reply: Reply, vocabulary: int, limit: int, matcher: "Matcher | None" = None
    ) -> None:
        prompt, prior = checked(request, vocabulary)
        stops, seed = request.stops, request.sampling.seed
        self.request, self.reply = request, reply
        self.done, self.limit = len(prior), limit
        check_token_ids(list(request.sampling.logit_bias or ()), "logit_bias", vocabulary)
        ends = () if stops.ignore_eos and matcher is None else request.eos_token_ids  # a form has an end
        self._ends = frozenset((*stops.stop_token_ids_hidden, *ends))
        self._min = stops.min_tokens or 0
        self._fresh = True
        if seed is None:  # the request's id stands for it, which another instance gets too
            seed = xxh3_64_intdigest(request.request_id.encode())
        if matcher is not None:
            matcher.replay(prior)
        self.sampler = Sampler(request.sampling, vocabulary, seed, prompt, prior, self._ends, self._min, matcher)

    @property
    def goes_on(self) -> bool:
        """Whether the answer may have another token after the one that is being computed."""
        return self.done + 1 < self.limit

    def take(self, index: int) -> tuple[bool, str | None]:
        """A new token: whether it is the first here, and why the answer ends with it if it does."""
        first, self._fresh = self._fresh, False
        self.done += 1
        if index in self._ends and self.done >= self._min:
            return first, "stop"
        return first, "length" if self.done >= self.limit else None

    def send(self, picked: Picked, finish: str | None) -> None:
        """Send it to the reader."""
        if finish is not None and self.request.stops.max_tokens == 0:  # only the prompt was wanted
            self.reply.tokens(b"", 0, "length")
            return
        if picked.logprob is not None:
            self.reply.logprobs((picked.logprob,), (picked.top,) if picked.top else ())
        self.reply.tokens(tokens.pack((picked.index,)), 1, finish)
