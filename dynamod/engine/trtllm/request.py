"""A request as TensorRT-LLM's `SamplingParams`, and its logprobs as ours. Pure; imports nothing of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from dynamod.message import tokens
from dynamod.message.errors import unsupported
from dynamod.message.worker import Generate

from ..adapter.sampling import Tops, sampling_names, seed_behind

FINISH = {"stop": "stop", "length": "length"}
_NO_END = -1
"""Without a tokenizer TensorRT-LLM must be told an end token; a model may have none."""


def sampling(request: Generate, limit: int) -> dict[str, Any]:
    """Keywords of `SamplingParams`. `limit`: tokens of the whole answer, those of other instances too.

    Temperature 0 is said by `top_k` 1. Without any option TensorRT-LLM would be greedy, so the temperature is always
    given. A seed continues as another seed: the noise of the answer's first tokens must not come again.

    Raises BadRequest.
    """
    given, stops, prior = request.sampling, request.stops, tokens.count(request.prior_output)
    if given.logit_bias:
        raise unsupported("logit_bias", "TensorRT-LLM takes no `logit_bias`")
    temperature = 1.0 if given.temperature is None else given.temperature
    greedy = temperature == 0
    seed = seed_behind(given.seed, prior)
    own: dict[str, Any] = {"temperature": temperature, "seed": seed, "logprobs": given.logprobs}
    if seed is not None:
        own["seed"] = seed & (2**63 - 1)
    if greedy:
        own |= {"temperature": None, "top_k": 1, "top_p": None, "min_p": None}
    least = max(0, (stops.min_tokens or 0) - prior)
    return {
        **sampling_names(request, **own),
        **_ends(request),
        "max_tokens": limit - prior,
        **({"min_tokens": min(least, limit - prior)} if least else {}),
        "ignore_eos": bool(stops.ignore_eos),
        "detokenize": False,
        "include_stop_str_in_output": True,  # the ingress hides the end token, and counts it
    }


def _ends(request: Generate) -> dict[str, Any]:
    """The model's first end token is `end_id`, which `min_tokens` holds back; all others are stop tokens."""
    eos = request.eos_token_ids
    end = eos[0] if eos else _NO_END
    others = {*request.stops.stop_token_ids_hidden, *(() if request.stops.ignore_eos else eos[1:])} - {end}
    return {"end_id": end, "pad_id": max(end, 0), **({"stop_token_ids": sorted(others)} if others else {})}


def logprobs(ids: Sequence[int], found: Sequence[Mapping[int, Any]], top: int) -> tuple[tuple[float, ...], Tops]:
    """Of each token its own, and the `top` best. Entries are by token id, and the chosen one may have any rank."""
    chosen = tuple([entry[index].logprob for index, entry in zip(ids, found, strict=True)])
    best = [sorted(((index, one.logprob) for index, one in entry.items()), key=lambda one: -one[1]) for entry in found]
    return chosen, tuple([tuple(entry[:top]) for entry in best]) if top else ()
