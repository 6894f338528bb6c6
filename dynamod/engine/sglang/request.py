"""A request as SGLang's sampling parameters, and its logprobs as ours. Pure; imports nothing of SGLang."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dynamod.message import tokens
from dynamod.message.worker import Generate, Grammar

from ..adapter.forms import form, gbnf
from ..adapter.sampling import Tops, sampling_names


def sampling(request: Generate, limit: int) -> dict[str, Any]:
    """SGLang's names. `limit`: tokens of the whole answer, those of other instances too.

    End tokens are named as stop tokens. Its `min_new_tokens` needs its tokenizer, and without one ends its scheduler,
    so it is not used; where the answer must have all its tokens no end counts, but that of a form. Raises BadRequest.
    """
    given, stops, prior = request.sampling, request.stops, tokens.count(request.prior_output)
    bias = {str(index): value for index, value in given.logit_bias.items()} if given.logit_bias else None
    return {
        **sampling_names(request, sampling_seed=given.seed, logit_bias=bias),
        "max_new_tokens": limit - prior,
        "stop_token_ids": sorted({*stops.stop_token_ids_hidden, *request.eos_token_ids}),
        "ignore_eos": not request.grammar and (bool(stops.ignore_eos) or (stops.min_tokens or 0) >= limit),
        **(_structured(request.grammar) if request.grammar else {}),
    }


def _structured(grammar: Grammar) -> dict[str, Any]:
    """SGLang has no choices: they become a regular expression. Its grammars are GBNF."""
    kind, value = form(grammar, "SGLang")
    if kind == "choice":
        return {"regex": "|".join(f"({re.escape(one)})" for one in value)}
    if kind == "grammar":
        return {"ebnf": gbnf(grammar, "SGLang")}
    return {"json_schema" if kind == "json" else kind: value}


def logprobs(meta: Mapping[str, Any], top: int) -> tuple[tuple[float, ...], Tops]:
    """Of each new token its own, and the `top` best, from a chunk's `meta_info`: entries are (logprob, id, text)."""
    chosen = tuple([entry[0] for entry in meta["output_token_logprobs"]])
    if not top:
        return chosen, ()
    return chosen, tuple([_best(entries) for entries in meta["output_top_logprobs"]])


def _best(entries: Sequence[Sequence[Any]]) -> tuple[tuple[int, float], ...]:
    return tuple([(entry[1], entry[0]) for entry in entries])
