"""What clients of Ollama's API send, as far as dynamod reads it."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dynamod.message.openai import Count, EngineFields, ModelRequest, TopLogprobs

from .options import OllamaOptions

Form = Literal["", "json"] | dict[str, Any]
"""The form of an answer: any, JSON, or JSON of a schema."""
Think = bool | Literal["low", "medium", "high", "max"]


class OllamaFunction(msgspec.Struct, frozen=True):
    """The function of a call, with its arguments as an object."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: dict[str, Any] = {}
    index: int | None = None
    description: str | None = None


class OllamaToolCall(msgspec.Struct, frozen=True):
    """A call of a tool in a message of the model."""

    function: OllamaFunction
    id: str | None = None
    type: str | None = None


class OllamaMessage(msgspec.Struct, frozen=True):
    """One message. `tool_name`: of the tool whose result a message of the role `tool` has; `images` are refused."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class Asking(EngineFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of /api/chat and /api/generate. Without `stream` the answer is a stream."""

    stream: bool | None = None
    format: Form | None = None
    options: OllamaOptions | None = None
    think: Think | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    truncate: Any = None
    shift: Any = None


class OllamaChatRequest(Asking, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/chat. Without messages the model is loaded, or unloaded where `keep_alive` is 0."""

    messages: list[OllamaMessage] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(Asking, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/generate. Without a prompt the model is loaded, or unloaded where `keep_alive` is 0.

    `raw`: the prompt is continued as it is, without the chat template. `suffix`: the model fills in between both.
    """

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None
    width: Any = None
    height: Any = None
    steps: Any = None


class OllamaEmbedRequest(EngineFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/embed. `truncate`: texts longer than the context are cut, which is the default."""

    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: Count | None = None
    options: OllamaOptions | None = None


class OllamaEmbeddingsRequest(EngineFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/embeddings, the older form for one text."""

    prompt: str | None = None
    options: OllamaOptions | None = None


class NamedModel(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request about a model. `name`: what older clients call `model`."""

    name: str | None = None

    def __post_init__(self) -> None:
        if not self.model and self.name:
            msgspec.structs.force_setattr(self, "model", self.name)


class OllamaShowRequest(NamedModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/show."""

    verbose: bool | None = None
    system: Any = None
    template: Any = None
    options: Any = None


class OllamaPullRequest(NamedModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/pull. Without `stream` the answer is a stream of progress."""

    stream: bool | None = None
    insecure: Any = None
    username: Any = None
    password: Any = None


class OllamaDeleteRequest(NamedModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """DELETE /api/delete."""
