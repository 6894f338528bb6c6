"""What clients send: OpenAI chat and completion requests, as far as dynamod reads them.

The structs forbid unknown fields; the front door decodes with them first and only looks closer (count, ignore, or
refuse by setting) when that fails. Fields of type `Any` are accepted for compatibility and passed to text engines.
"""

from typing import Any

import msgspec


class StreamOptions(msgspec.Struct, frozen=True):
    """`include_usage`: one more chunk with the usage before `[DONE]`."""

    include_usage: bool = False
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool = False


class RouterOverride(msgspec.Struct, frozen=True):
    """Router settings for one request. None: as configured."""

    overlap_score_weight: float | None = None
    router_temperature: float | None = None


class NvExt(msgspec.Struct, frozen=True):
    """Dynamo's extension object.

    `annotations`: formatted_prompt, token_ids, request_id, and query_instance_id, which asks where the request would go
    and generates nothing. `backend_instance_id`: send it there.
    """

    ignore_eos: bool | None = None
    annotations: list[str] | None = None
    greed_sampling: bool | None = None
    use_raw_prompt: bool | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    backend_instance_id: int | None = None
    token_data: list[int] | None = None
    max_thinking_tokens: int | None = None
    extra_fields: list[str] | None = None
    agent_hints: Any = None
    router_config_override: RouterOverride | None = None


class Part(msgspec.Struct, frozen=True):
    """One part of a message's content. Only `type` "text" is served."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: str | None = None


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

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: Any = None
    function_call: Any = None
    annotations: Any = None


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of every request that engines answer. None means: not sent."""

    model: str = ""
    nvext: NvExt | None = None
    user: str | None = None
    priority: int | None = None
    metadata: Any = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None

    def wants(self, annotation: str) -> bool:
        """Whether `nvext.annotations` asks for it."""
        return self.nvext is not None and annotation in (self.nvext.annotations or ())


class Common(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that chat and completion requests share."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    length_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None

    @property
    def token_limit(self) -> tuple[int | None, str]:
        """The most tokens that an answer may have (None: not sent), and the field that says so."""
        return self.max_tokens, "max_tokens"

    @property
    def alternatives(self) -> int | None:
        """Log probabilities per token beside the chosen token's; None: no log probabilities at all."""
        return None


class ChatRequest(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    reasoning_effort: str | None = None
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

    @property
    def token_limit(self) -> tuple[int | None, str]:
        """`max_completion_tokens`, else `max_tokens`."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    def alternatives(self) -> int | None:
        """`top_logprobs`, when `logprobs` is true."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Common, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions. `prompt`: a string, a list of strings, token ids, or a list of lists of token ids."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def alternatives(self) -> int | None:
        """`logprobs` is the count itself."""
        return self.logprobs
