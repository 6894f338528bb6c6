"""Requests to an engine in NVIDIA Dynamo's form: of ids as PreprocessedRequest, of text as the client's JSON."""

from typing import Any

import msgspec

from dynamod.message import tokens
from dynamod.message.errors import BadRequest
from dynamod.message.worker import Chat, Embed, Generate

_NO_OUTPUT_OPTIONS = ("prompt_logprobs", "skip_special_tokens", "formatted_prompt")
_FOR_ROUTERS = ("estimated_prefix_hit_num_blocks", "backend_instance_id", "router_config_override")


def preprocessed(request: Generate) -> dict[str, Any]:
    """NVIDIA Dynamo's PreprocessedRequest (mid-2025) as a dict, with `model` next to it.

    `prior_output`: what another engine has generated follows the prompt as if it belonged to it, and limits are
    lowered by its length. None: not given.
    """
    prior = tokens.count(request.prior_output)
    stops, sampling = request.stops, msgspec.structs.asdict(request.sampling)
    logprobs = sampling.pop("logprobs")
    bias = sampling.pop("logit_bias")
    del sampling["prompt_logprobs"]  # no such engine has the capability
    return {
        "model": request.model,
        "token_ids": list(tokens.unpack(request.token_ids + request.prior_output)),
        "batch_token_ids": None,
        "stop_conditions": {
            "max_tokens": None if stops.max_tokens is None else max(0, stops.max_tokens - prior),
            "stop": list(stops.stop) if stops.stop else None,
            "stop_token_ids_hidden": list(stops.stop_token_ids_hidden) or None,
            "min_tokens": None if stops.min_tokens is None else max(0, stops.min_tokens - prior),
            "ignore_eos": stops.ignore_eos,
        },
        "sampling_options": {**sampling, **({"logit_bias": bias} if bias else {}), "include_stop_str_in_output": None},
        "output_options": {"logprobs": logprobs} | dict.fromkeys(_NO_OUTPUT_OPTIONS),
        "eos_token_ids": list(request.eos_token_ids),
        "mdc_sum": request.mdc_sum or None,
        "annotations": list(request.annotations),
        **dict.fromkeys(_FOR_ROUTERS),
    }


def embedding(request: Embed) -> dict[str, Any]:
    """NVIDIA Dynamo's PreprocessedEmbeddingRequest as a dict; the ingress writes vectors as clients want them."""
    return {
        "model": request.model,
        "token_ids": [list(tokens.unpack(ids)) for ids in request.inputs],
        "encoding_format": "float",
        "dimensions": None,
        "mdc_sum": request.mdc_sum or None,
        "annotations": [],
    }


def room(request: Generate) -> int | None:
    """Tokens that may still come; None: there is no limit."""
    limit = request.stops.max_tokens
    return None if limit is None else max(0, limit - tokens.count(request.prior_output))


def openai(request: Chat) -> dict[str, Any]:
    """The client's own request. `n` is 1: the ingress sends a request for each choice.

    Raises BadRequest.
    """
    try:
        body: dict[str, Any] = msgspec.json.decode(request.body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise BadRequest(f"the request cannot be read: {error}") from None
    if body.get("n") is not None:
        body["n"] = 1
    return body
