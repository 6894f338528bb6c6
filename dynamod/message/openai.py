"""What clients send: OpenAI chat and completion requests, as far as dynamod reads them.

Types and ranges stand here, so that one decode checks them and /openapi.json shows them. The structs forbid unknown
fields; the API decodes with them first and only looks closer (count, ignore, or refuse by setting) when that fails.
Fields of type `Any` are accepted for compatibility and passed to text engines.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

_INT32 = 2**31 - 1  # engines keep counts and token ids in int32
_INT64 = 2**63 - 1

Count = Annotated[int, Meta(ge=1, le=_INT32)]
Choices = Annotated[int, Meta(ge=1, le=128)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
TokenId = Annotated[int, Meta(ge=0, le=_INT32)]
TokenKey = Annotated[str, Meta(pattern="^[0-9]{1,10}$")]
Bias = Annotated[float, Meta(ge=-100, le=100)]
TopK = Annotated[int, Meta(ge=-1, le=_INT32)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(ge=0.01, le=2)]  # logits divided by less are no numbers any more
Weight = Annotated[float, Meta(ge=0, le=1000)]
StopString = Annotated[str, Meta(min_length=1, max_length=1000)]  # each token's text is compared with so much held text


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage`: one more chunk with the usage before `[DONE]`.

    `continuous_usage_stats`: with `include_usage`, the usage so far in each chunk, as vLLM gives it.
    """

    include_usage: bool = False
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool = False


class RouterOverride(msgspec.Struct, frozen=True):
    """Router settings for one request. None: as configured."""

    overlap_score_weight: Weight | None = None
    router_temperature: Weight | None = None


REASONING_NAMES = ("reasoning_content", "reasoning", "thinking")
"""What engines and clients call the reasoning of a message."""

ExtraField = Literal["worker_id", "timing"]

GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
CONSTRAINTS = ("structured_outputs", *GUIDED, "grammar", "json_schema")
"""Fields of vLLM and llama.cpp that ask for a form of the answer."""
_constraints = attrgetter(*CONSTRAINTS)


class NvExt(msgspec.Struct, frozen=True):
    """Dynamo's extension object.

    `annotations`: formatted_prompt, token_ids, request_id, and query_instance_id, which asks where the request would go
    and generates nothing. A stream has them in its first chunk, in front of the choices. `backend_instance_id`: send it
    there. `extra_fields`: members of `nvext` of the answer, in a stream of its last chunk with a choice.
    """

    ignore_eos: bool | None = None
    annotations: list[str] | None = None
    greed_sampling: bool | None = None
    use_raw_prompt: bool | None = None
    top_k: TopK | None = None
    repetition_penalty: RepetitionPenalty | None = None
    backend_instance_id: Annotated[int, Meta(ge=0, le=_INT64)] | None = None
    token_data: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    max_thinking_tokens: Annotated[int, Meta(ge=0, le=_INT32)] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    extra_fields: list[ExtraField] | None = None
    agent_hints: Any = None
    router_config_override: RouterOverride | None = None


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content. Only `type` "text" is served; what an assistant has refused is its text."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: str | None = None

    def __post_init__(self) -> None:
        if self.type == "refusal" and self.refusal is not None:
            msgspec.structs.force_setattr(self, "type", "text")
            msgspec.structs.force_setattr(self, "text", self.refusal)


class Function(msgspec.Struct, frozen=True):
    """A tool call's function: `arguments` is JSON text (or an object, which some clients send back)."""

    name: str
    arguments: Any = None


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call in an assistant message."""

    function: Function
    id: str | None = None
    type: str = "function"
    index: int | None = None


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: Annotated[str, Meta(min_length=1)]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    audio: Any = None
    function_call: Any = None
    annotations: Any = None

    @property
    def length(self) -> int:
        """Characters of its content."""
        content = self.content
        return len(content) if isinstance(content, str) else sum([len(part.text or "") for part in content or ()])


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Messages = Annotated[list[Message], Meta(min_length=1)]


class ResponseFormat(msgspec.Struct, frozen=True):
    """The form of an answer's text. `type`: "text" is any; the others need an engine with grammars.

    `structures` with `triggers`, or `format`: of the type structural_tag (see `structured.tags`).
    """

    type: str
    json_schema: Any = None
    structures: Any = None
    triggers: Any = None
    format: Any = None


ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "standard", "standard_only"]
"""Tiers of OpenAI and Anthropic. They change nothing here: `priority` says which requests come first."""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request about a model. An empty name means the only one that is served."""

    model: str = ""


class EngineFields(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of every request that engines answer. None means: not sent."""

    nvext: NvExt | None = None
    user: str | None = None
    priority: Annotated[int, Meta(ge=-_INT32, le=_INT32)] | None = None
    metadata: Any = None
    store: bool | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    keep_alive: Annotated[
        float | str | None, Meta(description="how long a model on demand stays loaded after this, as Ollama has it")
    ] = None
    send_loading_state: Annotated[
        bool | None, Meta(description="a stream has comments about its model on demand until that is loaded")
    ] = None

    @property
    def extra_fields(self) -> Sequence[ExtraField]:
        """What the answer shall say of itself."""
        return (self.nvext.extra_fields or ()) if self.nvext is not None else ()

    def wants(self, annotation: str) -> bool:
        """Whether `nvext.annotations` asks for it."""
        return self.nvext is not None and annotation in (self.nvext.annotations or ())


class Common(EngineFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that chat and completion requests share."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=64)] | None = None
    n: Choices | None = None
    seed: Annotated[int, Meta(ge=-_INT64 - 1, le=_INT64)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    length_penalty: float | None = None
    logit_bias: dict[TokenKey, Bias] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=_INT32)] | None = None
    ignore_eos: bool | None = None
    best_of: Choices | None = None
    use_beam_search: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    grammar: Any = None
    json_schema: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    truncate_prompt_tokens: Any = None
    thinking_token_budget: Any = None
    regex: Any = None
    ebnf: Any = None
    prompt_logprobs: TopLogprobs | None = None
    return_token_ids: bool | None = None

    @property
    def token_limit(self) -> tuple[int | None, str]:
        """The most tokens that an answer may have (None: not sent), and the field that says so."""
        return self.max_tokens, "max_tokens"

    @property
    def alternatives(self) -> int | None:
        """Log probabilities per token in addition to the chosen token's; None: no log probabilities at all."""
        return None

    @property
    def prompt_alternatives(self) -> int | None:
        """As `alternatives`, of the tokens of the prompt."""
        return self.prompt_logprobs

    @property
    def continues_prompt(self) -> bool:
        """Whether the answer continues in the text of the prompt, so that a space at its start belongs to it."""
        return False

    @property
    def constraint(self) -> str:
        """The field by which the answer has to keep to a form other than text; empty when there is none."""
        if self.response_format is not None and self.response_format.type != "text":
            return "response_format"
        found = _constraints(self)
        if found.count(None) != len(found):
            return next(name for name, value in zip(CONSTRAINTS, found, strict=True) if value is not None)
        if self.nvext is not None:
            for name in GUIDED:
                if getattr(self.nvext, name) is not None:
                    return f"nvext.{name}"
        return ""


class ChatRequest(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    verbosity: str | None = None
    web_search_options: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template_args: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def __post_init__(self) -> None:
        if (narrowed := _allowed(self.tools, self.tool_choice)) is not None:
            msgspec.structs.force_setattr(self, "tools", narrowed[0])
            msgspec.structs.force_setattr(self, "tool_choice", narrowed[1])

    @property
    def token_limit(self) -> tuple[int | None, str]:
        """`max_completion_tokens`, else `max_tokens`."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be calls of tools."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, dict)

    @property
    def continues_prompt(self) -> bool:
        """Where it continues in the last message."""
        return bool(self.continue_final_message)

    @property
    def alternatives(self) -> int | None:
        """`top_logprobs`, when `logprobs` is true."""
        return (self.top_logprobs or 0) if self.logprobs else None


def _allowed(tools: list[dict[str, Any]] | None, choice: Any) -> tuple[list[dict[str, Any]], str] | None:
    """The tools that a `tool_choice` of the type allowed_tools leaves, and `auto` or `required`.

    None: the choice is another one, or names a tool that is not there, which is refused later.
    """
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return None
    given = choice.get("allowed_tools", choice)
    mode, listed = (given.get("mode"), given.get("tools")) if isinstance(given, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        return None
    names = [_tool_name(one) for one in listed]
    kept = [tool for tool in tools or () if _tool_name(tool) in names]
    return (kept, mode) if "" not in names and {*names} == {*map(_tool_name, kept)} else None


def _tool_name(tool: Any) -> str:
    """Of a tool of a chat or of a response."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


class CompletionRequest(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions. `prompt`: a string, a list of strings, token ids, or a list of lists of token ids."""

    max_tokens: Annotated[int, Meta(ge=0, le=_INT32)] | None = None
    prompt: str | Annotated[list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1)]], Meta(min_length=1)]
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def continues_prompt(self) -> bool:
        """Always."""
        return True

    @property
    def alternatives(self) -> int | None:
        """`logprobs` is the count itself."""
        return self.logprobs

    @property
    def prompt_alternatives(self) -> int | None:
        """Those of an echoed prompt are wanted too."""
        wanted = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max([count for count in wanted if count is not None], default=None)
