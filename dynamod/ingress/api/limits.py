"""Ranges of request fields: one table, read by the validation and by /openapi.json."""

from typing import NamedTuple

INT32 = 2**31 - 1
INT64 = 2**63 - 1
MAX_N = 128
MAX_CHOICES = 2048  # prompts times n
MAX_STOPS = 64


class Range(NamedTuple):
    """Inclusive bounds; `above` marks a lower bound that is not itself allowed."""

    low: float
    high: float
    above: bool = False

    def holds(self, value: float) -> bool:
        """Whether the value lies inside."""
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        if self.high in (INT32, INT64):
            return f"at least {self.low:g}" if self.low > -INT64 else "a 64-bit integer"
        if self.above:
            return f"above {self.low:g} and at most {self.high:g}"
        return f"between {self.low:g} and {self.high:g}"


COMMON = {
    "max_tokens": Range(1, INT32),
    "n": Range(1, MAX_N),
    "best_of": Range(1, MAX_N),
    "seed": Range(-(2**63), INT64),
    "temperature": Range(0, 2),
    "top_p": Range(0, 1),
    "top_k": Range(-1, INT32),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 2, above=True),
    "length_penalty": Range(-100, 100),
    "min_tokens": Range(0, INT32),
    "priority": Range(-INT32, INT32),
}
CHAT = COMMON | {"max_completion_tokens": Range(1, INT32), "top_logprobs": Range(0, 20)}
COMPLETION = COMMON | {"logprobs": Range(0, 20)}
NVEXT = {
    "top_k": COMMON["top_k"],
    "repetition_penalty": COMMON["repetition_penalty"],
    "max_thinking_tokens": Range(0, INT32),
    "backend_instance_id": Range(0, INT64),
}
ROUTER = {"overlap_score_weight": Range(0, 1000), "router_temperature": Range(0, 1000)}
TOKEN_ID = Range(0, INT32)
LOGIT_BIAS = Range(-100, 100)
