"""POST /v1/chat/completions."""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypedDict

import msgspec
from aiohttp import web

from dynamod.http.context import RequestContext
from dynamod.http.settings import FrontendSettings
from dynamod.ingress.base import NO_CALLS, CallForm, Logprob
from dynamod.ingress.lowering import Served, only_asked
from dynamod.ingress.parsing import NewParser
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import ChatRequest, Part
from dynamod.message.worker import BEHIND, Grammar
from dynamod.preprocess.conversation import check_messages, check_tools
from dynamod.preprocess.model import Model, Prepared

from .details import PromptLogprob, RequestMetrics, token_logprobs
from .endpoint import Frontend
from .generate import Generation
from .response import FinishReason, Usage
from .rules import either, only, set_to

NOT_ENFORCED = "x-dynamod-not-enforced"
"""Header that names the fields of a request which the engine was only asked to follow."""


class AssistantMessage(TypedDict):
    """The message of an answer; text engines may add members of their own."""

    content: str | None
    refusal: str | None
    tool_calls: list[Any] | None
    role: Literal["assistant"]
    function_call: dict[str, Any] | None
    audio: dict[str, Any] | None


class ChatChoice(msgspec.Struct):
    """One answer."""

    index: int
    message: AssistantMessage
    finish_reason: FinishReason
    logprobs: dict[str, Any] | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatResponse(msgspec.Struct, kw_only=True):
    """The whole answer. `nvext`: where the request would go, for `query_instance_id`, and `extra_fields`."""

    id: str
    choices: list[ChatChoice]
    created: int
    model: str
    service_tier: str | None = None
    system_fingerprint: str | None = None
    object: Literal["chat.completion"] = "chat.completion"
    usage: Usage
    nvext: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    metrics: RequestMetrics | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletions(Generation[ChatRequest]):
    """Answers a conversation."""

    path = "/v1/chat/completions"
    summary = "Answer a conversation"
    request = ChatRequest
    response = ChatResponse
    label = "chat_completions"
    model_type = "chat"
    kind = "chat"
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    prompt_ids_in_choice = False
    api: ClassVar[str] = "chat"
    """Its word in `stream_tool_arguments`."""
    object_arguments: ClassVar[bool] = False
    """An answer in one piece has arguments as an object, so that text which is none cannot be told as arguments."""

    rules = (
        either(only(top_logprobs=(0, None)), set_to("logprobs", True)),
        either(
            only(tool_choice=(None, "none", "auto")),
            {"properties": {"tools": {"type": "array", "minItems": 1}}, "required": ["tools"]},
        ),
    )
    unserved = Generation.unserved | {
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": ([], ["text"]),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "verbosity": ("medium",),
    }

    def check(self, request: ChatRequest) -> None:
        """The messages too."""
        check_messages(request.messages)
        check_tools(request.tools, request.tool_choice)
        for place, message in enumerate(request.messages):
            if isinstance(message.content, list) and message.role != "assistant":
                _check_parts(message.content, f"messages[{place}].content")
        super().check(request)
        if request.top_logprobs and not request.logprobs:
            raise BadRequest("`top_logprobs` needs `logprobs`: true", param="top_logprobs")

    def call_form(self, request: ChatRequest, settings: FrontendSettings) -> CallForm:
        """As the settings say; what has been streamed cannot be content later."""
        if not request.tools:
            return NO_CALLS
        stays = settings.malformed_tool_calls == "arguments"
        pieces = stays and bool(request.stream) and self.api in settings.streamed_arguments
        return CallForm(pieces, stays and (pieces or not self.object_arguments))

    def answer(
        self, frontend: Frontend, context: RequestContext, asked: ChatRequest, card: ModelCard, body: bytes
    ) -> Coroutine[Any, Any, web.StreamResponse]:
        """Says in a header that calls which have to come are not enforced, or refuses the request, as settings say."""
        if asked.must_call and only_asked(asked, card, frontend.backend.model(asked.model)):
            if frontend.settings.unenforced_tool_choice == "refuse":
                why = f"the engine of model {card.name!r} cannot be made to call a tool; ask with `auto`"
                raise unsupported("tool_choice", f"`tool_choice`: {why}")
            context.headers[NOT_ENFORCED] = "tool_choice"
        return super().answer(frontend, context, asked, card, body)

    def prompts(self, model: Model, request: ChatRequest) -> Sequence[Prepared]:
        """The messages in the model's template."""
        return (model.prepare_chat(request),)

    def parser(self, request: ChatRequest, served: Served) -> NewParser | None:
        """As the model's card or its template say."""
        if served.parsers is None:
            return None
        calls = request.tools is not None or request.tool_choice is not None
        if calls and only_asked(request, served.card, served.model):
            served.parsers.only_asked()
        if served.model is None and not served.takes_forms:
            return served.parsers.of(request, ())
        if calls:
            check_tools(request.tools, request.tool_choice)  # a prompt that is given has not shown them to the template
        if calls and served.forces_calls(request):
            written = served.written_calls(request) is not None
            return served.parsers.forced(request, _special(served), written=written)
        return served.parsers.of(request, _special(served)) if not request.constraint else None

    def beside_form(
        self,
        request: ChatRequest,
        served: Served,
        prompts: Sequence[Prepared],
        grammar: Grammar,
        parser: NewParser | None,
    ) -> tuple[Grammar, NewParser | None]:
        """As the model's formats have them; not where the answer continues in a message, or the prompt is ids.

        Where only the worker renders the prompt, the worker refuses what does not go with it.
        """
        prompt, ids = (prompts[0].prompt, prompts[0].ids) if prompts else ("", ())
        if served.parsers is None or request.continues_prompt or ids:
            return grammar, parser
        special = _special(served)
        opening, closing = served.parsers.before_form(request, prompt, special)
        if closing:
            served.require(BEHIND, request.constraint or "tool_choice")
        known = grammar.kind == "json" and BEHIND in served.forms
        calls = served.parsers.before_calls(request, special) if known else ""
        if not (closing or calls):
            return grammar, parser
        grammar = msgspec.structs.replace(grammar, opening=opening, closing=closing, calls=calls)
        return grammar, served.parsers.with_form(request, grammar, parser)

    def delta(self, text: str, first: bool) -> dict[str, Any]:
        """The first chunk of a choice carries the role too, so that chunks equal engine steps."""
        return {"delta": {"role": "assistant", "content": text} if first else {"content": text}}

    def ending(self, first: bool) -> dict[str, Any]:
        """A choice without text still says its role."""
        return self.delta("", first) if first else {"delta": {}}

    def part(self, part: Mapping[str, Any], first: bool) -> dict[str, Any] | None:
        """The delta as it came; text of a completion becomes its content."""
        delta = dict(part.get("delta") or {})
        content = part.get("text")
        if isinstance(content, str):
            delta.setdefault("content", content)
        if not any(value is not None for name, value in delta.items() if name != "role"):
            return None
        return {"delta": {"role": "assistant", **delta} if first else delta}

    def logprobs(self, entries: Sequence[Logprob], offset: int) -> dict[str, Any]:
        """`{"content": [{token, bytes, logprob, top_logprobs}], "refusal": null}`."""
        return {"content": [token_logprobs(entry) for entry in entries], "refusal": None}

    def choice(self, index: int, text: str, reason: str, logprobs: Any, extra: Mapping[str, Any]) -> ChatChoice:
        """A message; what a text engine adds to it is its own."""
        message: AssistantMessage = {
            "content": None if not text and extra.get("tool_calls") else text,
            "refusal": None,
            "tool_calls": None,
            "role": "assistant",
            "function_call": None,
            "audio": None,
            **extra,  # type: ignore[typeddict-item]
        }
        return ChatChoice(index, message, reason, logprobs)


def _check_parts(parts: Sequence[Part], where: str) -> None:
    for place, part in enumerate(parts):
        if part.refusal is not None:
            raise BadRequest(f"`{where}[{place}]`: only assistants refuse", param=f"{where}[{place}].type")


def _special(served: Served) -> Sequence[str]:
    """The special tokens of the model's tokenizer; of a text engine only its worker knows them."""
    return served.model.tokenizer.special if served.model is not None else ()
