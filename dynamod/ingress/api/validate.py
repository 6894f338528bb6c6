"""Whether a request's values make sense, before anybody spends work on it. Every refusal names its field."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, Common, CompletionRequest, Message

from .limits import CHAT, COMPLETION, INT32, LOGIT_BIAS, MAX_CHOICES, MAX_STOPS, NVEXT, ROUTER, TOKEN_ID, Range


def check_chat(request: ChatRequest) -> int:
    """Number of choices. Raises BadRequest."""
    if not request.messages:
        raise BadRequest("`messages` must hold at least one message", param="messages")
    for place, message in enumerate(request.messages):
        _check_message(message, f"messages[{place}]")
    _check_common(request, CHAT)
    if request.top_logprobs and not request.logprobs:
        raise BadRequest("`top_logprobs` needs `logprobs`: true", param="top_logprobs")
    if request.functions:
        raise BadRequest("`functions` is not served; use `tools`", param="functions", code="unsupported_parameter")
    return request.n or 1


def check_completion(request: CompletionRequest) -> int:
    """Number of choices: prompts times n. Raises BadRequest."""
    prompts = count_prompts(request.prompt)
    _check_common(request, COMPLETION)
    if request.suffix:
        raise BadRequest("`suffix` is not served", param="suffix", code="unsupported_parameter")
    if request.echo:
        if text_prompts(request.prompt) is None:
            raise BadRequest("`echo` needs a prompt of text, not of token ids", param="echo")
        if request.logprobs is not None:
            raise BadRequest("`logprobs` of an echoed prompt are not served", param="logprobs")
    choices = prompts * (request.n or 1)
    if choices > MAX_CHOICES:
        raise BadRequest(f"prompts times `n` is {choices}, above {MAX_CHOICES}", param="prompt")
    return choices


def count_prompts(prompt: str | list[str | int | list[int]]) -> int:
    """How many prompts: a string or a list of ids is one. Raises BadRequest for mixed or empty lists."""
    if isinstance(prompt, str):
        return 1
    if not prompt:
        raise BadRequest("`prompt` must not be an empty list", param="prompt")
    kind = type(prompt[0])
    for place, item in enumerate(prompt):
        if type(item) is not kind:
            raise BadRequest("`prompt` mixes strings, ids and lists", param=f"prompt[{place}]")
        if isinstance(item, list):
            if not item:
                raise BadRequest(f"`prompt[{place}]` must not be an empty list", param=f"prompt[{place}]")
            _check_ids(item, f"prompt[{place}]")
    if kind is int:
        _check_ids(prompt, "prompt")  # type: ignore[arg-type]
        return 1
    return len(prompt)


def text_prompts(prompt: str | list[str | int | list[int]]) -> list[str] | None:
    """The prompts when they are text, else None."""
    if isinstance(prompt, str):
        return [prompt]
    texts = [item for item in prompt if isinstance(item, str)]
    return texts if len(texts) == len(prompt) else None


def _check_common(request: Common, ranges: Mapping[str, Range]) -> None:
    _check_ranges(request, ranges, "")
    if request.stop is not None:
        _check_stop(request.stop)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise BadRequest("`best_of` other than `n` is not served", param="best_of", code="unsupported_parameter")
    if request.min_tokens and request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise BadRequest("`min_tokens` is above `max_tokens`", param="min_tokens")
    if request.stream_options is not None and not request.stream:
        raise BadRequest("`stream_options` needs `stream`: true", param="stream_options")
    if request.stop_token_ids:
        _check_ids(request.stop_token_ids, "stop_token_ids")
    if request.logit_bias:
        for token, bias in request.logit_bias.items():
            if not (token.isascii() and token.isdigit() and len(token) < 11 and int(token) <= INT32):
                raise BadRequest(f"`logit_bias`: {token[:20]!r} is no token id", param="logit_bias")
            if not LOGIT_BIAS.holds(bias):
                raise BadRequest(f"`logit_bias` of token {token} must be {LOGIT_BIAS}", param="logit_bias")
    if request.nvext is not None:
        _check_ranges(request.nvext, NVEXT, "nvext.")
        if request.nvext.router_config_override is not None:
            _check_ranges(request.nvext.router_config_override, ROUTER, "nvext.router_config_override.")
        if request.nvext.token_data:
            _check_ids(request.nvext.token_data, "nvext.token_data")


def _check_ranges(values: Any, ranges: Mapping[str, Range], prefix: str) -> None:
    for (name, allowed), value in zip(ranges.items(), attrgetter(*ranges)(values), strict=True):
        if value is not None and not allowed.holds(value):
            shown = str(value) if abs(value) < 1e18 else "out of range"
            raise BadRequest(f"`{prefix}{name}` is {shown}; it must be {allowed}", param=prefix + name)


def _check_stop(stop: str | Sequence[str]) -> None:
    stops = [stop] if isinstance(stop, str) else stop
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"`stop` has {len(stops)} strings, above {MAX_STOPS}", param="stop")
    for place, text in enumerate(stops):
        if not text:
            param = "stop" if isinstance(stop, str) else f"stop[{place}]"
            raise BadRequest(f"`{param}` must not be empty: it would end every answer at once", param=param)


def _check_ids(ids: Sequence[int], param: str) -> None:
    if min(ids) < TOKEN_ID.low or max(ids) > TOKEN_ID.high:
        raise BadRequest(f"`{param}` has a number that is no token id (0 to {INT32})", param=param)


def _check_message(message: Message, where: str) -> None:
    if not message.role:
        raise BadRequest(f"`{where}.role` must not be empty", param=f"{where}.role")
    if message.content is None and message.role in ("system", "developer", "user"):
        raise BadRequest(f"`{where}.content` is required", param=f"{where}.content")
    if isinstance(message.content, list):
        for place, part in enumerate(message.content):
            at = f"{where}.content[{place}]"
            if part.type != "text":
                text = f"`{at}.type` is {part.type[:40]!r}; only text parts are served"
                raise BadRequest(text, param=f"{at}.type", code="unsupported_content")
            if part.text is None:
                raise BadRequest(f"`{at}.text` is required", param=f"{at}.text")
