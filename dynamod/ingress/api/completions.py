"""POST /v1/completions."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from dynamod.ingress.base import Job, Logprob
from dynamod.ingress.lowering import Lowered, Served
from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import CompletionRequest
from dynamod.preprocess.model import Model, Prepared

from .generate import Generation, finite
from .response import FinishReason, Usage
from .rules import either, items, only

MAX_CHOICES = 2048  # prompts times n
_WORDS = {"type": "string", "minLength": 1}
_TEXTS = either(_WORDS, items(_WORDS, minItems=1))
_FEW = either(_WORDS, items({"type": "integer"}), {"maxItems": 16})


class CompletionChoice(msgspec.Struct):
    """One continuation of a prompt."""

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: dict[str, Any] | None


class CompletionResponse(msgspec.Struct, kw_only=True):
    """The whole answer. `nvext`: where the request would go, for `query_instance_id`."""

    id: str
    choices: list[CompletionChoice]
    created: int
    model: str
    system_fingerprint: str | None = None
    object: Literal["text_completion"] = "text_completion"
    usage: Usage
    nvext: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class Completions(Generation[CompletionRequest]):
    """Continues a text, or several."""

    path = "/v1/completions"
    summary = "Continue a text"
    request = CompletionRequest
    response = CompletionResponse
    label = "completions"
    model_type = "completions"
    kind = "completion"
    id_prefix = "cmpl-"
    chunk_object = "text_completion"

    rules = (
        either(only(echo=(False, None)), {"properties": {"prompt": _TEXTS, "logprobs": {"type": "null"}}}),
        either(only(n=(1, None)), {"properties": {"prompt": _FEW}}),
    )
    unserved = Generation.unserved | {"suffix": ("",)}

    def check(self, request: CompletionRequest) -> None:
        """The prompts too: all of one kind, and not too many."""
        kind = type(request.prompt[0]) if isinstance(request.prompt, list) else str
        for place, prompt in enumerate(request.prompt if isinstance(request.prompt, list) else ()):
            if type(prompt) is not kind:
                raise BadRequest("`prompt` mixes strings, ids and lists", param=f"prompt[{place}]")
        super().check(request)
        if request.echo and kind is not str:
            raise BadRequest("`echo` needs a prompt of text, not of token ids", param="echo")
        if request.echo and request.logprobs is not None:
            raise unsupported("logprobs", "`logprobs` of an echoed prompt are not served")
        choices = len(prompts_of(request)) * (request.n or 1)
        if choices > MAX_CHOICES:
            raise BadRequest(f"prompts times `n` is {choices}, above {MAX_CHOICES}", param="prompt")

    def prompts(self, model: Model, request: CompletionRequest) -> Sequence[Prepared]:
        """Each prompt of the request."""
        return model.prepare_prompts(request, prompts_of(request))

    def echo(self, request: CompletionRequest) -> Sequence[str]:
        """The prompts, which are texts (see `check`), when the request wants them back."""
        return cast("list[str]", prompts_of(request)) if request.echo else ()

    async def lower(self, job: Job, served: Served) -> Lowered:
        """A text engine takes one prompt, as a string."""
        if served.model is None and not isinstance(cast("CompletionRequest", job.request).prompt, str):
            raise BadRequest(f"The model {served.card.name!r} takes one prompt as a string.", param="prompt")
        return await super().lower(job, served)

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        """The text is a member of the choice."""
        return {"text": text}

    def ending(self, first: bool) -> dict[str, Any]:
        """A choice always has a text."""
        return {"text": ""}

    def part(self, part: Mapping[str, Any], first: bool) -> dict[str, Any] | None:
        """The text, or the content of a chat's delta; a completion has room for nothing else."""
        text = part.get("text", (part.get("delta") or {}).get("content"))
        return {"text": text} if text else None

    def logprobs(self, entries: Sequence[Logprob], offset: int) -> dict[str, Any]:
        """`{tokens, token_logprobs, top_logprobs, text_offset}`."""
        offsets = []
        for entry in entries:
            offsets.append(offset)
            offset += len(entry.token)
        return {
            "tokens": [entry.token for entry in entries],
            "token_logprobs": [finite(entry.value) for entry in entries],
            "top_logprobs": [{token: finite(value) for token, _, value in entry.top} for entry in entries],
            "text_offset": offsets,
        }

    def choice(self, index: int, text: str, reason: str, logprobs: Any, extra: Mapping[str, Any]) -> CompletionChoice:
        """Nothing but text."""
        return CompletionChoice(index, text, reason, logprobs)


def prompts_of(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts one by one: a string, or token ids. `check` has seen to it that they are all of one kind."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [cast("list[int]", prompt)]
    return cast("list[str | list[int]]", prompt)
