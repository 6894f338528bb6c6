"""What a request asks for, checked: the front door checks too, but other senders may not."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from dynamod.message import tokens
from dynamod.message.errors import BadRequest
from dynamod.message.worker import Generate


@dataclass(frozen=True, slots=True)
class Asked:
    """`prompt`, `prior` (made elsewhere for the same answer): ids. `whole`: tokens that the answer may have in all.

    `ends`: ids that end it: what the request names, and the model's own unless they are to be ignored. `seed`: where
    the front door says none, the request's id stands for it, which another instance gets too.
    """

    prompt: Sequence[int]
    prior: Sequence[int]
    whole: int
    ends: frozenset[int]
    seed: int


def read(request: Generate, vocabulary: int, most: int) -> Asked:
    """Check a request. `most`: tokens that prompt and answer may have together. Raises BadRequest."""
    try:
        prompt, prior = tokens.unpack(request.token_ids), tokens.unpack(request.prior_output)
    except ValueError:
        raise BadRequest("the token ids cannot be read") from None
    if not prompt:
        raise BadRequest("the prompt is empty")
    for ids in (prompt, prior, request.sampling.logit_bias or {}):
        if wrong := _outside(ids, vocabulary):
            raise BadRequest(f"the vocabulary has ids from 0 to {vocabulary - 1}, not {wrong[0]}")
    if len(prompt) >= most:
        room = f"this worker has room for {most} of prompt and answer together"
        raise BadRequest(f"the prompt has {len(prompt)} tokens, and {room}", code="context_length_exceeded")
    stops, seed = request.stops, request.sampling.seed
    rest = most - len(prompt)
    return Asked(
        prompt,
        prior,
        rest if stops.max_tokens is None else min(stops.max_tokens, rest),
        frozenset((*stops.stop_token_ids_hidden, *(() if stops.ignore_eos else request.eos_token_ids))),
        xxh3_64_intdigest(request.request_id.encode()) if seed is None else seed,
    )


def _outside(ids: Collection[int], vocabulary: int) -> list[int]:
    if not ids or 0 <= min(ids) <= max(ids) < vocabulary:
        return []
    return [index for index in ids if not 0 <= index < vocabulary]
