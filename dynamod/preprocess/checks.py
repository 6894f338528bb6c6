"""What a request's fields may be: plain functions that raise BadRequest naming the field, or say nothing.

The front door has checked the types; these are the ranges. None always means "not sent".
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, Common, CompletionRequest

MAX_STOPS = 32
MAX_STOP_LENGTH = 1000  # characters; each token's text is compared with held back text up to this long
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_COUNT = 2**31 - 1  # engines keep counts in int32


def number(
    value: float | None,
    param: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """`value` lies between `low` and `high` and is finite; `open_*` excludes the bound itself."""
    if value is None:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"{param} must be a finite number", param=param)
    if value < low or value > high or (open_low and value == low) or (open_high and value == high):
        bounds = [
            f"{'more than' if open_low else 'at least'} {low:g}" if low > -math.inf else "",
            f"{'less than' if open_high else 'at most'} {high:g}" if high < math.inf else "",
        ]
        raise BadRequest(f"{param} must be {' and '.join(filter(None, bounds))}, not {value}", param=param)


def sampling(request: Common) -> None:
    """Ranges of everything that chooses tokens."""
    number(request.temperature, "temperature", 0, 2)
    number(request.top_p, "top_p", 0, 1, open_low=True)
    number(request.top_k, "top_k", -1, MAX_COUNT)
    number(request.min_p, "min_p", 0, 1)
    number(request.presence_penalty, "presence_penalty", -2, 2)
    number(request.frequency_penalty, "frequency_penalty", -2, 2)
    number(request.repetition_penalty, "repetition_penalty", 0, open_low=True)
    number(request.length_penalty, "length_penalty")
    number(request.seed, "seed", -(2**63), 2**63, open_high=True)
    number(request.n, "n", 1, MAX_CHOICES)
    number(request.best_of, "best_of", 1, MAX_CHOICES)
    if request.best_of is not None and request.best_of < (request.n or 1):
        raise BadRequest(f"best_of must be at least n, which is {request.n or 1}", param="best_of")
    if request.nvext is not None:
        number(request.nvext.top_k, "nvext.top_k", -1, MAX_COUNT)
        number(request.nvext.repetition_penalty, "nvext.repetition_penalty", 0, open_low=True)
    logprobs(request)


def logprobs(request: Common) -> None:
    """Chat: top_logprobs needs logprobs. Completions: logprobs is the count itself."""
    if isinstance(request, CompletionRequest):
        number(request.logprobs, "logprobs", 0, MAX_TOP_LOGPROBS)
    elif isinstance(request, ChatRequest):
        number(request.top_logprobs, "top_logprobs", 0, MAX_TOP_LOGPROBS)
        if request.top_logprobs and not request.logprobs:
            raise BadRequest("top_logprobs needs logprobs to be true", param="top_logprobs")


def limits(request: Common) -> None:
    """Token limits, each for itself and against the other."""
    wanted, param = max_tokens(request)
    number(request.max_tokens, "max_tokens", 1, MAX_COUNT)
    if isinstance(request, ChatRequest):
        number(request.max_completion_tokens, "max_completion_tokens", 1, MAX_COUNT)
    number(request.min_tokens, "min_tokens", 0, MAX_COUNT)
    if wanted is not None and request.min_tokens is not None and request.min_tokens > wanted:
        raise BadRequest(f"min_tokens must be at most {param}, which is {wanted}", param="min_tokens")


def max_tokens(request: Common) -> tuple[int | None, str]:
    """The limit the client gave and the name of the field: max_completion_tokens wins."""
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        return request.max_completion_tokens, "max_completion_tokens"
    return request.max_tokens, "max_tokens"


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the stop strings, one by one."""
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(found) > MAX_STOPS:
        raise BadRequest(f"stop has {len(found)} strings, at most {MAX_STOPS} are served", param="stop")
    for text in found:
        if not text:
            raise BadRequest("stop must not contain an empty string", param="stop")
        if len(text) > MAX_STOP_LENGTH:
            raise BadRequest(f"a stop string is longer than {MAX_STOP_LENGTH} characters", param="stop")
    return found


def token_ids(ids: Sequence[Any], param: str, vocab_size: int) -> None:
    """Every id is an integer of the vocabulary."""
    for position, index in enumerate(ids):
        if not isinstance(index, int) or isinstance(index, bool):
            raise BadRequest(f"{param}[{position}] must be a token id", param=param)
        if not 0 <= index < vocab_size:
            raise BadRequest(
                f"{param}[{position}] is {index}, but token ids of this model are 0 to {vocab_size - 1}", param=param
            )


def logit_bias(bias: Mapping[str, float] | None, vocab_size: int) -> dict[int, float] | None:
    """Return the bias by token id."""
    if not bias:
        return None
    found: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            raise BadRequest(
                f"logit_bias has the key {key[:40]!r}, which is no token id of this model", param="logit_bias"
            )
        number(value, "logit_bias", -100, 100)
        found[int(key)] = value
    return found


def context(prompt_tokens: int, context_length: int, param: str, *, at_least: bool = False) -> None:
    """The prompt leaves room for at least one token. A context length of 0 is not known.

    `at_least`: `prompt_tokens` is only a lower bound.
    """
    if prompt_tokens < 1:
        raise BadRequest("The prompt is empty.", param=param)
    if context_length and prompt_tokens >= context_length:
        raise BadRequest(
            f"This model's maximum context length is {context_length} tokens, but the prompt has "
            f"{'at least ' if at_least else ''}{prompt_tokens} tokens and at least one more must fit.",
            param=param,
            code="context_length_exceeded",
        )


def tools(tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> None:
    """Tools are functions with names, and a tool that must be called is one of them."""
    names: list[str] = []
    for position, tool in enumerate(tools or ()):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if tool.get("type") != "function" or not isinstance(name, str) or not name:
            raise BadRequest(f"tools[{position}] must be a function with a name", param=f"tools[{position}]")
        names.append(name)
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise BadRequest('tool_choice must be "none", "auto", "required" or a function', param="tool_choice")
        if choice == "required" and not names:
            raise BadRequest('tool_choice "required" needs tools', param="tool_choice")
    elif choice is not None:
        function = choice.get("function") if isinstance(choice, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or name not in names:
            raise BadRequest(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
