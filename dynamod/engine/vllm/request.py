"""A request as vLLM's `SamplingParams`, and its logprobs as ours. Pure; imports nothing of vLLM."""

from collections.abc import Mapping, Sequence
from typing import Any

from dynamod.message import tokens
from dynamod.message.worker import Generate, Grammar

from ..adapter.forms import form
from ..adapter.sampling import Tops, sampling_names, seed_behind


def sampling(request: Generate, limit: int) -> dict[str, Any]:
    """Keywords of `SamplingParams`. `limit`: tokens of the whole answer, those of other instances too.

    End tokens are named as stop tokens, which `min_tokens` holds back too: which they are the card has said, not
    vLLM's tokenizer. A seed continues as another seed: the noise of the answer's first tokens must not come again.
    `structured_outputs`: keywords of `StructuredOutputsParams`. A form ends when it ends, whatever `min_tokens` says.
    Raises BadRequest.
    """
    given, stops, prior = request.sampling, request.stops, tokens.count(request.prior_output)
    ends = {*stops.stop_token_ids_hidden, *(() if stops.ignore_eos else request.eos_token_ids)}
    seed = seed_behind(given.seed, prior)
    return {
        **sampling_names(
            request,
            seed=seed,
            logit_bias=given.logit_bias,
            logprobs=given.logprobs,
            prompt_logprobs=given.prompt_logprobs,
        ),
        "max_tokens": limit - prior,
        "min_tokens": 0 if request.grammar else min(max(0, (stops.min_tokens or 0) - prior), limit - prior),
        "stop_token_ids": sorted(ends),
        "ignore_eos": True,
        "detokenize": False,
        **({"structured_outputs": _structured(request.grammar)} if request.grammar else {}),
    }


def _structured(grammar: Grammar) -> dict[str, Any]:
    kind, value = form(grammar, "vLLM")
    return {kind: value}


def logprobs(ids: Sequence[int], found: Sequence[Mapping[int, Any]], top: int) -> tuple[tuple[float, ...], Tops]:
    """Of each token its own, and the `top` best. vLLM's entries are by token id, and the chosen one has any rank."""
    chosen = tuple([entry[index].logprob for index, entry in zip(ids, found, strict=True)])
    if not top:
        return chosen, ()
    return chosen, tuple([_best(entry, top) for entry in found])


def prompt_logprobs(
    ids: Sequence[int], found: Sequence[Mapping[int, Any] | None], top: int
) -> tuple[tuple[float | None, ...], Tops]:
    """The same of the prompt's tokens `ids`; vLLM has none for the first, and perhaps more after these."""
    pairs = list(zip(ids, found, strict=False))
    chosen = tuple([None if entry is None else entry[index].logprob for index, entry in pairs])
    return chosen, tuple([_best(entry or {}, top) for _, entry in pairs]) if top else ()


def _best(entry: Mapping[int, Any], top: int) -> tuple[tuple[int, float], ...]:
    ranked = sorted((one.rank, index) for index, one in entry.items() if one.rank <= top)
    return tuple([(index, entry[index].logprob) for _rank, index in ranked[:top]])
