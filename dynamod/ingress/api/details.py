"""What an answer contains in addition to its text: cached and reasoning tokens, times, and the worker that made it."""

import time
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import msgspec

from dynamod.http.context import Place
from dynamod.ingress.base import Logprob
from dynamod.message.discovery import Instance
from dynamod.message.openai import ExtraField
from dynamod.observe.records import Facts
from dynamod.observe.timeline import Timeline

_LOWEST = -9999.0  # JSON has no minus infinity
_CONTINUES = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that are inside a character


class RequestMetrics(msgspec.Struct, frozen=True):
    """How long an answer took, by the names of vLLM. Null: there was no token, or no second one.

    Time to the first token: from the arrival of the request. Generation: from the first token to the last. Queue: from
    the arrival until a worker was found. Tokens per second: of the generation. Of several choices the gaps are those of
    one.
    """

    time_to_first_token_ms: float | None
    generation_time_ms: float | None
    queue_time_ms: float
    mean_itl_ms: float | None
    tokens_per_second: float | None


class PromptLogprob(msgspec.Struct, frozen=True):
    """A token at a place of a prompt, in vLLM's form. `rank` 1: the best there; null: it is not among the best."""

    logprob: float | None
    rank: int | None
    decoded_token: str


def prompt_logprobs(
    entries: Sequence[Logprob], ids: Sequence[Sequence[int]], top: int
) -> list[dict[int, PromptLogprob] | None]:
    """By token of the prompt, the token itself and the `top` best; null for the first one.

    `ids`: of each token, and of its alternatives.
    """
    found: list[dict[int, PromptLogprob] | None] = []
    for entry, (chosen, *others) in zip(entries, ids, strict=True):
        ranks = {other: rank for rank, other in enumerate(others, 1)}
        own = PromptLogprob(finite(entry.value), ranks.get(chosen), entry.token)
        best = zip(others[:top], entry.top, strict=False)
        rest = {other: PromptLogprob(finite(value), ranks[other], token) for other, (token, _, value) in best}
        found.append(None if entry.value is None else {chosen: own} | rest)
    return found


def finite(value: float | None) -> float | None:
    """A log probability that JSON can say."""
    return value if value is None or value > _LOWEST else _LOWEST


def characters(entry: Logprob) -> int:
    """Characters that begin in a token: it may consist of parts of characters."""
    return len(entry.token_bytes.translate(None, _CONTINUES))


def text_offsets(entries: Sequence[Logprob], offset: int) -> list[int]:
    """The character at which each token begins. `offset`: characters that begin before the first token."""
    found: list[int] = []
    for entry in entries:
        found.append(offset - 1 if offset and entry.token_bytes[:1] and entry.token_bytes[0] in _CONTINUES else offset)
        offset += characters(entry)
    return found


def token_name(token: str, raw: bytes) -> str:
    """The text of a token; its bytes, as OpenAI's completions say them, where it has a part of a character.

    So no two tokens at one place have the same name.
    """
    whole = "\ufffd" not in token or token.encode() == raw
    return token if whole else "bytes:" + "".join([f"\\x{byte:02x}" for byte in raw])


def token_logprobs(entry: Logprob) -> dict[str, Any]:
    """A token of an answer in OpenAI's form: `{token, bytes, logprob, top_logprobs}`."""
    top = [_token(token, raw, value) for token, raw, value in entry.top]
    return _token(entry.token, entry.token_bytes, entry.value) | {"top_logprobs": top}


def _token(token: str, raw: bytes, value: float | None) -> dict[str, Any]:
    return {"token": token, "bytes": list(raw), "logprob": finite(value)}


class Details:
    """Of one answer; apart from its writer, whose attributes are looked up for each token.

    `begun`: when the request arrived, on the clock of `perf_counter`. `first`, where it is asked for: seconds from then
    to the first token, None before it.
    """

    __slots__ = ("_begun", "_cached", "_placed", "_reasoning", "_workers", "facts", "places", "timeline")

    def __init__(self, begun: float) -> None:
        self._begun = self._placed = begun
        self._workers: tuple[int | None, int | None] = (None, None)  # for the prompt, for the answer
        self._cached: dict[int, int] = {}  # tokens, by prompt
        self._reasoning: dict[int, int] = {}  # tokens, by choice
        self.places: list[Place] = []
        self.facts: Facts | None = None
        self.timeline: Timeline | None = None

    def placed(self, choice: int, worker: Instance | None, prefill: Instance | None) -> None:
        """A worker will answer, or computes the prompt. In answers to clients the first of several choices counts."""
        now, found = perf_counter(), worker or prefill
        if found is None:
            return
        self.places.append(Place(choice, now - self._begun, found, worker is None))
        if choice:
            return
        self._placed = now
        self._workers = found.instance_id, found.instance_id if worker is not None else self._workers[1]

    def cached(self, prompt: int, tokens: int) -> None:
        """Of the choices of one prompt the least counts: the others find what it has left in the cache."""
        self._cached[prompt] = min(tokens, self._cached.get(prompt, tokens))

    def reasoned(self, choice: int, tokens: int) -> None:
        """So many tokens of a choice are reasoning, so far."""
        self._reasoning[choice] = max(tokens, self._reasoning.get(choice, 0))

    def cached_tokens(self, prompts: int) -> int | None:
        """Tokens that were in caches; None as long as that is not known of each of so many prompts."""
        return sum(self._cached.values()) if 0 < prompts <= len(self._cached) else None

    @property
    def reasoning_tokens(self) -> int | None:
        """Tokens that are reasoning; None without a reasoning parser, or before the end."""
        return sum(self._reasoning.values()) if self._reasoning else None

    def metrics(self, first: float | None, last: float, tokens: int, gaps: int) -> RequestMetrics:
        """`last`: when the newest tokens came. `tokens`: of all choices. `gaps`: between those of the longest."""
        waited = max(0.0, self._placed - self._begun) * 1000
        if first is None:
            return RequestMetrics(None, None, round(waited, 3), None, None)
        took = max(0.0, last - self._begun - first)
        return RequestMetrics(
            round(first * 1000, 3),
            round(took * 1000, 3),
            round(waited, 3),
            round(took * 1000 / gaps, 3) if gaps > 0 else None,
            round(tokens / took, 3) if took and gaps > 0 else None,
        )

    def extra(self, wanted: Sequence[ExtraField], first: float | None) -> dict[str, Any]:
        """In Dynamo's form. Times are ms, as far as they are known."""
        found: dict[str, Any] = {}
        if "worker_id" in wanted:
            found["worker_id"] = dict(zip(("prefill_worker_id", "decode_worker_id"), self._workers, strict=True))
        if "timing" in wanted:
            total, waited = perf_counter() - self._begun, max(0.0, self._placed - self._begun)
            times = {
                "request_received_ms": time.time() - total,
                "prefill_wait_time_ms": waited,
                "prefill_time_ms": None if first is None else max(0.0, first - waited),
                "ttft_ms": first,
                "total_time_ms": total,
            }
            found["timing"] = {name: None if one is None else round(one * 1000, 3) for name, one in times.items()}
        return found
