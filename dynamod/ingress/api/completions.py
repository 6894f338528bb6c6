"""POST /v1/completions."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from aiohttp import web

from dynamod.http.context import RequestContext
from dynamod.ingress.base import Job, Logprob
from dynamod.ingress.large import apart
from dynamod.ingress.lowering import Lowered, Served
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import CompletionRequest
from dynamod.preprocess.model import Model, Prepared

from .details import PromptLogprob, RequestMetrics, finite, text_offsets, token_name
from .endpoint import Frontend
from .generate import Generation
from .response import FinishReason, Usage
from .rules import either, items, only, set_to
from .unserved import Unserved

MAX_CHOICES = 2048  # prompts times n
_NULL = msgspec.Raw(b"null")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_WORDS = {"type": "string", "minLength": 1}
_FEW = either(_WORDS, items({"type": "integer"}), {"maxItems": 16})


class CompletionChoice(msgspec.Struct):
    """One continuation of a prompt."""

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: dict[str, Any] | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | msgspec.UnsetType = msgspec.UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """The whole answer. `nvext`: where the request would go, for `query_instance_id`, and `extra_fields`."""

    id: str
    choices: list[CompletionChoice]
    created: int
    model: str
    system_fingerprint: str | None = None
    object: Literal["text_completion"] = "text_completion"
    usage: Usage
    nvext: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    metrics: RequestMetrics | msgspec.UnsetType = msgspec.UNSET


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
    prompt_ids_in_choice = True

    rules = (
        either({"properties": {"max_tokens": either({"type": "null"}, {"minimum": 1})}}, set_to("echo", True)),
        either(only(n=(1, None)), {"properties": {"prompt": _FEW}}),
    )

    def unserved_in(
        self, request: CompletionRequest, card: ModelCard | None = None, model: Model | None = None
    ) -> Unserved:
        """Also `suffix`, where the model has no tokens for it."""
        yield from super().unserved_in(request, card, model)
        if (
            request.suffix
            and card is not None
            and (model.tokenizer.infill is None if model is not None else card.kind == "text")
        ):
            yield "suffix", f"`suffix`: the model {card.name!r} does not fill in text here"

    def check(self, request: CompletionRequest) -> None:
        """The prompts too: all of one kind, and not too many."""
        kind = type(request.prompt[0]) if isinstance(request.prompt, list) else str
        for place, prompt in enumerate(request.prompt if isinstance(request.prompt, list) else ()):
            if type(prompt) is not kind:
                raise BadRequest("`prompt` mixes strings, ids and lists", param=f"prompt[{place}]")
        super().check(request)
        if request.max_tokens == 0 and not request.echo:
            raise BadRequest("`max_tokens` is 0; without `echo` it must be at least 1", param="max_tokens")
        choices = len(prompts_of(request)) * (request.n or 1)
        if choices > MAX_CHOICES:
            raise BadRequest(f"prompts times `n` is {choices}, above {MAX_CHOICES}", param="prompt")

    def prompts(self, model: Model, request: CompletionRequest) -> Sequence[Prepared]:
        """Each prompt of the request."""
        return model.prepare_prompts(request, prompts_of(request), request.suffix or "")

    def echo(self, request: CompletionRequest) -> Sequence[str]:
        """The prompts when the request wants them back, and has them as texts."""
        prompts = prompts_of(request) if request.echo else []
        return [prompt if isinstance(prompt, str) else "" for prompt in prompts]

    async def lower(self, job: Job, served: Served) -> Lowered:
        """With the texts of ids that are wanted back. Raises BadRequest."""
        request = cast("CompletionRequest", job.request)
        ids = [prompt for prompt in prompts_of(request) if isinstance(prompt, list)] if request.echo else []
        model = served.model
        if request.suffix and model is None:
            raise unsupported("suffix", f"`suffix`: the engine of model {served.card.name!r} takes one text")
        if ids and model is None:
            raise BadRequest(f"`echo` of token ids: model {served.card.name!r} takes text", param="echo")
        lowered = await super().lower(job, served)
        if not ids or model is None:
            return lowered
        texts = await apart(lambda: [model.tokenizer.decode(one, skip_special=False) for one in ids])
        return msgspec.structs.replace(lowered, echo=texts)

    def bodies(self, body: bytes, request: CompletionRequest) -> Sequence[bytes]:
        """A text engine takes one prompt. The limit that the client has not given is in its body too."""
        if isinstance(request.prompt, str) and request.max_tokens is None:
            return (body,)
        fields: dict[str, Any] = _fields.decode(body)
        limited = fields.get("max_tokens") in (None, _NULL)
        if isinstance(request.prompt, str) and not limited:
            return (body,)
        if limited and request.max_tokens is not None:
            fields["max_tokens"] = request.max_tokens
        return [_encode({**fields, "prompt": prompt}) for prompt in prompts_of(request)]

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: CompletionRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """An answer without a limit gets the operator's."""
        default = frontend.settings.completion_max_tokens
        if default and asked.max_tokens is None:
            asked = msgspec.structs.replace(asked, max_tokens=max(default, asked.min_tokens or 0))
        return await super().answer(frontend, context, asked, card, body)

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
        return {
            "tokens": [token_name(entry.token, entry.token_bytes) for entry in entries],
            "token_logprobs": [finite(entry.value) for entry in entries],
            "top_logprobs": [None if entry.value is None else _best(entry) for entry in entries],
            "text_offset": text_offsets(entries, offset),
        }

    def choice(self, index: int, text: str, reason: str, logprobs: Any, extra: Mapping[str, Any]) -> CompletionChoice:
        """Nothing but text."""
        return CompletionChoice(index, text, reason, logprobs)


def _best(entry: Logprob) -> dict[str, float | None]:
    """The best tokens at a place, and the token that stands there, as OpenAI and vLLM have it."""
    found = {token_name(token, raw): finite(value) for token, raw, value in entry.top}
    own = token_name(entry.token, entry.token_bytes)
    return found if own in found else {**found, own: finite(entry.value)}


def prompts_of(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts one by one: a string, or token ids. `check` has seen to it that they are all of one kind."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [cast("list[int]", prompt)]
    return cast("list[str | list[int]]", prompt)
