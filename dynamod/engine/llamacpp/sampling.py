"""The next token of one sequence from its row of logits, with numpy.

The order is vLLM's: log probabilities are of the raw logits; then the form of the answer, logit_bias and min_tokens,
penalties, temperature, min_p, top_k, top_p. The draw is a Gumbel race whose noise is a hash of seed, position and token
id: a worker that continues the answer draws with the same noise, and a small error of a logit changes the token only
when two were so close.

Where nothing is cut off, noise for each id of a large vocabulary would take milliseconds. There blocks of ids race
first, each with the sum of its weights and a noise of its own, then the ids of the block that has won: the
probabilities are the same, since the largest of some Gumbel variables is one with the sum of their weights.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamod.message.errors import EngineFailed
from dynamod.message.worker import Sampling

from .arrays import NDArray, np

if TYPE_CHECKING:
    from dynamod.structured.matcher import Matcher

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

GREEDY_BELOW = 1e-5
"""Temperatures below are 0, as in vLLM."""

_FAR = 30.0  # a candidate this far below the best (in units of temperature) would win once in 1e13 draws
_NEAR = 1024  # the likeliest candidates, which nearly always are enough for top_p: sorting all is slow
_BLOCK = 256  # ids that race as one at first
_BLOCKS = 2**32  # blocks have their noise as if they were ids from here on
_M64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Picked:
    """A token; with log probabilities where they were requested: its own, and the best as (id, log probability)."""

    index: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """One answer's choices. `prompt` and `output`: ids so far, for penalties.

    `forbidden`: ids that must not come before `min_tokens` tokens of output. `seed`: any integer. `matcher`: of the
    form that the answer keeps to, after `output`.
    """

    def __init__(
        self,
        sampling: Sampling,
        vocabulary: int,
        seed: int,
        prompt: Sequence[int] = (),
        output: Sequence[int] = (),
        forbidden: Collection[int] = (),
        min_tokens: int = 0,
        matcher: "Matcher | None" = None,
    ) -> None:
        self._matcher = matcher
        self._broken: EngineFailed | None = None
        self.position = len(output)
        self._seed = seed & _M64
        temperature = sampling.temperature
        self._temperature = 1.0 if temperature is None else temperature
        self._greedy = self._temperature < GREEDY_BELOW
        self._top_k = sampling.top_k if sampling.top_k is not None and 0 < sampling.top_k < vocabulary else 0
        self._top_p = 1.0 if sampling.top_p is None else sampling.top_p
        self._min_p = sampling.min_p or 0.0
        self._logprobs = sampling.logprobs
        self._min_tokens = min_tokens
        self._forbidden = _ids([index for index in forbidden if 0 <= index < vocabulary])
        bias = {index: value for index, value in (sampling.logit_bias or {}).items() if 0 <= index < vocabulary}
        self._bias_ids, self._bias = _ids(bias), np.array(list(bias.values()), np.float32)
        self._repetition = 1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty
        self._frequency = sampling.frequency_penalty or 0.0
        self._presence = sampling.presence_penalty or 0.0
        self._counts: NDArray[np.int32] | None = None  # of the output, by id
        self._seen: NDArray[np.bool_] | None = None  # in prompt or output
        if self._frequency or self._presence:
            self._counts = np.bincount(_ids(output), minlength=vocabulary).astype(np.int32)
        if self._repetition != 1.0:
            self._seen = np.zeros(vocabulary, np.bool_)
            self._seen[_ids(prompt)] = self._seen[_ids(output)] = True

    @property
    def plain(self) -> bool:
        """Whether the token is simply the one with the highest logit."""
        penalties = self._counts is not None or self._seen is not None
        if not self._greedy or penalties or self._matcher is not None:
            return False
        return not len(self._bias_ids) and self._logprobs is None and not self._held

    @property
    def _held(self) -> bool:
        return self.position < self._min_tokens and len(self._forbidden) > 0

    def take(self, index: int) -> None:
        """A token has been chosen."""
        self.position += 1
        if self._counts is not None:
            self._counts[index] += 1
        if self._seen is not None:
            self._seen[index] = True
        if self._matcher is not None and self._broken is None:
            try:
                self._matcher.accept(index)
            except EngineFailed as error:  # the next choice raises it, for this answer alone
                self._broken = error

    def pick(self, row: Floats) -> Picked:
        """Choose; `row` (vocabulary,) is not changed. Raises ValueError when there is no number in it, EngineFailed
        when the form of the answer cannot be followed.
        """
        allowed = None if self._matcher is None else self._allowed(self._matcher, len(row))
        if allowed is not None and len(allowed) == 1:  # no sampling is needed
            index = int(allowed[0])
            return Picked(index) if self._logprobs is None else scored(row, index, self._logprobs)
        logits = self._changed(row, allowed)
        index = int(logits.argmax())
        if not math.isfinite(logits[index]):
            raise ValueError("the model's output is no number")
        if not self._greedy:
            index = self._draw(logits)
        if self._logprobs is None:
            return Picked(index)
        return scored(row, index, self._logprobs)

    def _allowed(self, matcher: "Matcher", vocabulary: int) -> Ids:
        """The ids that may come next: EOS not before `min_tokens`, unless nothing else may come."""
        if self._broken is not None:
            raise self._broken
        bits = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), count=vocabulary, bitorder="little")
        if self._held:
            later = bits.copy()
            later[self._forbidden] = 0
            bits = later if later.any() else bits
        return np.flatnonzero(bits)

    def _changed(self, row: Floats, allowed: Ids | None = None) -> Floats:
        """Logits with everything that is added or taken, perhaps `row` itself. `allowed`: ids that may come."""
        if allowed is not None:
            given, row = row, np.full_like(row, -np.inf)
            row[allowed] = given[allowed]
        elif not len(self._bias_ids) and not self._held and self._seen is None and self._counts is None:
            return row
        logits = row.copy() if allowed is None else row
        if len(self._bias_ids):
            logits[self._bias_ids] += self._bias
        if self._held and allowed is None:
            logits[self._forbidden] = -np.inf
        if self._seen is not None:
            seen = logits[self._seen]
            logits[self._seen] = np.where(seen > 0, seen / self._repetition, seen * self._repetition)
        if self._counts is not None:
            used = np.flatnonzero(self._counts)
            logits[used] -= self._frequency * self._counts[used] + np.float32(self._presence)
        return logits

    def _draw(self, logits: Floats) -> int:
        best = logits.max()
        if not self._top_k and self._top_p >= 1.0 and not self._min_p:
            ids = self._block(logits, best)
            return self._race(ids, (logits[ids].astype(np.float64) - best) / self._temperature)
        ids = np.flatnonzero(logits > best - _FAR * self._temperature)
        if 0 < self._top_k < len(ids):
            near = logits[ids]
            ids = ids[near >= np.partition(near, -self._top_k)[-self._top_k]]  # equal ones stay together
        values = (logits[ids].astype(np.float64) - best) / self._temperature
        if self._min_p:
            kept = values >= math.log(self._min_p)
            ids, values = ids[kept], values[kept]
        if self._top_p < 1.0:
            nucleus = _nucleus(values, self._top_p)
            ids, values = ids[nucleus], values[nucleus]
        return self._race(ids, values)

    def _race(self, ids: Ids, values: NDArray[np.float64], kind: int = 0) -> int:
        if len(ids) == 1:
            return int(ids[0])
        return int(ids[(values + gumbel(self._seed, self.position, ids + kind)).argmax()])

    def _block(self, logits: Floats, best: np.float32) -> Ids:
        """The ids of the block that the next token is one of."""
        starts = np.arange(0, len(logits), _BLOCK)
        if len(starts) == 1:
            return np.arange(len(logits))
        weights = np.exp((logits - best) / np.float32(self._temperature))
        sums = np.add.reduceat(weights, starts).astype(np.float64)
        with np.errstate(divide="ignore"):  # a block can be too far below to have any weight
            first = self._race(starts, np.log(sums), _BLOCKS)
        return np.arange(first, min(first + _BLOCK, len(logits)))


def scored(row: Floats, index: int, count: int) -> Picked:
    """A token by its `row` (vocabulary,) of logits: its log probability and the `count` best ones."""
    best = row.max()
    total = float(best) + math.log(np.exp(row - best).sum(dtype=np.float64))
    top: tuple[tuple[int, float], ...] = ()
    if count:
        count = min(count, len(row))
        ids = np.argpartition(row, -count)[-count:]
        ids = ids[np.lexsort((ids, -row[ids]))]
        top = tuple([(int(one), float(row[one]) - total) for one in ids])
    return Picked(index, float(row[index]) - total, top)


def _nucleus(values: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Places of the likeliest candidates that together reach `top_p`, at least one."""
    goal = top_p * np.exp(values).sum()
    near = np.arange(len(values))
    if len(near) > 2 * _NEAR:
        some = np.flatnonzero(values >= np.partition(values, -_NEAR)[-_NEAR])  # equal ones stay together
        if np.exp(values[some]).sum() > goal:
            near = some
    order = near[np.argsort(-values[near], kind="stable")]
    weights = np.exp(values[order])
    before = np.cumsum(weights) - weights  # of all that are likelier
    return order[: max(1, int((before < goal).sum()))]


def gumbel(seed: int, position: int, ids: NDArray[Any]) -> NDArray[np.float64]:
    """Gumbel noise of each id: splitmix64 of seed, position and id, the same wherever it is computed."""
    key = _mixed((_mixed(seed) + position * _GOLDEN) & _M64)
    bits = np.uint64(key) ^ (ids.astype(np.uint64) * np.uint64(_GOLDEN))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))


def _mixed(value: int) -> int:
    """One round of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value + _GOLDEN) & _M64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _M64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _M64
    return value ^ (value >> 31)


def _ids(values: Iterable[int]) -> Ids:
    return np.fromiter(values, np.int64)
