"""What a request asks for, checked: the frontend checks too, but other senders may not."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from dynamod.message import tokens
from dynamod.message.errors import BadRequest
from dynamod.message.worker import Generate

from ..batching.engine import answer_limit


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """`prompt`, `prior` (made elsewhere for the same answer): ids. `limit`: tokens that the answer may have in all.

    `ends`: ids that end it: what the request names, and the model's own unless they are to be ignored. `seed`: where
    the frontend sends none, the request's id stands for it, which another instance gets too.
    """

    prompt: Sequence[int]
    prior: Sequence[int]
    limit: int
    ends: frozenset[int]
    seed: int


def parse(request: Generate, vocabulary: int, room: int) -> ParsedRequest:
    """Check a request. `room`: tokens that prompt and answer may have together. Raises BadRequest."""
    try:
        prompt, prior = tokens.unpack(request.token_ids), tokens.unpack(request.prior_output)
    except ValueError:
        raise BadRequest("the token ids cannot be read") from None
    limit = answer_limit(len(prompt), room, request.stops.max_tokens)
    for ids in (prompt, prior, request.sampling.logit_bias or {}):
        if wrong := _outside(ids, vocabulary):
            raise BadRequest(f"the vocabulary has ids from 0 to {vocabulary - 1}, not {wrong[0]}")
    stops, seed = request.stops, request.sampling.seed
    return ParsedRequest(
        prompt,
        prior,
        limit,
        frozenset((*stops.stop_token_ids_hidden, *(() if stops.ignore_eos else request.eos_token_ids))),
        xxh3_64_intdigest(request.request_id.encode()) if seed is None else seed,
    )


def _outside(ids: Collection[int], vocabulary: int) -> list[int]:
    if not ids or 0 <= min(ids) <= max(ids) < vocabulary:
        return []
    return [index for index in ids if not 0 <= index < vocabulary]
