"""What a model allows of a request, and the request's settings as `Stops` and `Sampling` with the model's defaults.

Types and ranges have been checked when the request was decoded (`message.openai`); None always means "not sent". A
check raises BadRequest, which names the field, or says nothing.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest
from dynamod.message.worker import Sampling, Stops

if TYPE_CHECKING:
    from dynamod.message.openai import Common  # workers check ids, and have no requests of clients


def check_token_ids(ids: Sequence[int], param: str, vocab_size: int) -> None:
    """Every id is one of the vocabulary."""
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        place, index = next((place, index) for place, index in enumerate(ids) if not 0 <= index < vocab_size)
        known = f"token ids of this model are 0 to {vocab_size - 1}"
        raise BadRequest(f"`{param}[{place}]` is {index}, but {known}", param=param)


def logit_bias_of(bias: Mapping[str, float] | None, vocab_size: int) -> dict[int, float] | None:
    """Return the bias by token id."""
    if not bias:
        return None
    found = {int(key): value for key, value in bias.items()}
    if (largest := max(found)) >= vocab_size:
        known = f"token ids of this model are 0 to {vocab_size - 1}"
        raise BadRequest(f"`logit_bias` has the key {largest}, but {known}", param="logit_bias")
    return found


def check_context(prompt_tokens: int, context_length: int, param: str, *, at_least: bool = False) -> None:
    """The prompt leaves room for at least one token. A context length of 0 is not known.

    `at_least`: `prompt_tokens` is only a lower bound.
    """
    if prompt_tokens < 1:
        raise BadRequest("The prompt is empty.", param=param)
    if context_length and prompt_tokens >= context_length:
        least = "at least " if at_least else ""
        limit = f"This model's maximum context length is {context_length} tokens"
        why = f"{limit}, but the prompt has {least}{prompt_tokens} tokens and at least one more must fit."
        raise BadRequest(why, param=param, code="context_length_exceeded")


def check_whole_input(tokens: int, context_length: int, param: str) -> None:
    """A text whose vector is wanted fits into the context, where nothing follows it. A length of 0 is not known."""
    if tokens < 1:
        raise BadRequest(f"`{param}` is empty", param=param)
    if context_length and tokens > context_length:
        why = f"`{param}` has {tokens} tokens, and this model's maximum context length is {context_length} tokens"
        raise BadRequest(why, param=param, code="context_length_exceeded")


def stops_of(request: "Common", card: ModelCard, vocab_size: int) -> Stops:
    """Lower everything that ends an answer; `fit` cuts it to the context. Raises BadRequest."""
    ignore_eos = request.ignore_eos
    if ignore_eos is None and request.nvext is not None:
        ignore_eos = request.nvext.ignore_eos
    extra, stop = request.stop_token_ids or (), request.stop
    check_token_ids(extra, "stop_token_ids", vocab_size)
    hidden = (*(() if ignore_eos else card.eos_token_ids), *extra)
    if request.min_tokens and len(extra) >= vocab_size - len(card.eos_token_ids) and len({*hidden}) >= vocab_size:
        raise BadRequest(
            "`min_tokens` forbids `stop_token_ids`, which are all tokens there are", param="stop_token_ids"
        )
    return Stops(
        max_tokens=request.token_limit[0],
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()) or None,
        stop_token_ids_hidden=tuple(dict.fromkeys(hidden)),
        min_tokens=request.min_tokens,
        ignore_eos=ignore_eos,
    )


def fit(stops: Stops, rest: int) -> Stops:
    """Cut `max_tokens` and `min_tokens` to `rest`, the tokens that the context has room for; 0: it is not known."""
    if not rest:
        return stops
    limit = rest if stops.max_tokens is None else min(stops.max_tokens, rest)
    least = stops.min_tokens
    return msgspec.structs.replace(stops, max_tokens=limit, min_tokens=None if least is None else min(least, limit))


def sampling_of(request: "Common", card: ModelCard, vocab_size: int) -> Sampling:
    """Lower everything that chooses tokens. Raises BadRequest.

    The client's top-level field wins over nvext, nvext over the model's default. `top_k` -1 means off (0 becomes -1).
    `top_p` 0 means the best token: some engines only know numbers above 0, so it becomes `top_k` 1.
    """
    nvext, default = request.nvext, card.sampling_defaults.get
    temperature, top_k, repetition = request.temperature, request.top_k, request.repetition_penalty
    if nvext is not None:
        temperature = 0.0 if nvext.greed_sampling else temperature
        top_k = nvext.top_k if top_k is None else top_k
        repetition = nvext.repetition_penalty if repetition is None else repetition
    if top_k is None and "top_k" in card.sampling_defaults:
        top_k = int(card.sampling_defaults["top_k"])
    top_p = default("top_p") if request.top_p is None else request.top_p
    if top_p == 0:
        top_p, top_k = None, 1
    return Sampling(
        n=request.n,
        best_of=request.best_of,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=default("repetition_penalty") if repetition is None else repetition,
        temperature=default("temperature") if temperature is None else temperature,
        top_p=top_p,
        top_k=-1 if top_k == 0 else top_k,
        min_p=default("min_p") if request.min_p is None else request.min_p,
        use_beam_search=request.use_beam_search,
        length_penalty=request.length_penalty,
        seed=request.seed,
        logit_bias=logit_bias_of(request.logit_bias, vocab_size),
        logprobs=request.alternatives,
        prompt_logprobs=request.prompt_alternatives,
    )
