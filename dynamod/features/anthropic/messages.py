"""What clients of Anthropic's Messages API send, as far as dynamod reads it.

Turns and blocks are unions told apart by `role` and `type`. Unknown fields are tolerated, as in
`message.openai`: agents send those of beta versions.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dynamod.message.openai import Count, Effort, EngineFields, StopString, TopK

Name = Annotated[str, Meta(min_length=1)]


class TextBlock(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """Text."""

    text: str


class ImageBlock(msgspec.Struct, frozen=True, tag="image", tag_field="type"):
    """An image, which is refused with its place."""

    source: Any = None


class DocumentBlock(msgspec.Struct, frozen=True, tag="document", tag_field="type"):
    """A document, which is refused with its place."""

    source: Any = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking", tag_field="type"):
    """Reasoning of an earlier answer. The signature is not checked."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag="redacted_thinking", tag_field="type"):
    """Reasoning of another server, which is encrypted; it is left out."""

    data: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use", tag_field="type"):
    """A call of a tool."""

    id: Name
    name: Name
    input: dict[str, Any]


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result", tag_field="type"):
    """What a tool has returned for the call with this id."""

    tool_use_id: Name
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None


UserBlock = TextBlock | ImageBlock | DocumentBlock | ToolResultBlock
AssistantBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock


class UserTurn(msgspec.Struct, frozen=True, tag="user", tag_field="role"):
    """What the user says, and what tools have returned."""

    content: str | list[UserBlock]


class AssistantTurn(msgspec.Struct, frozen=True, tag="assistant", tag_field="role"):
    """What the model has said. At the end of a conversation: how the answer begins."""

    content: str | list[AssistantBlock]


class SystemTurn(msgspec.Struct, frozen=True, tag="system", tag_field="role"):
    """Instructions in the middle of a conversation."""

    content: str | list[TextBlock]


class ClientTool(msgspec.Struct, frozen=True):
    """A tool that the client runs. `input_schema`: JSON schema of its input. `type`: custom, or not said."""

    name: Name
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether the model has to call a tool; `name` belongs to `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, frozen=True):
    """Whether the model reasons first, where its template can say that: not when disabled. No budget is counted."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """The answer is JSON of this schema."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """`effort`: of the reasoning, for templates that read it."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class Conversation(EngineFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the prompt is made of. Fields of type `Any` change nothing in the answer."""

    messages: Annotated[list[UserTurn | AssistantTurn | SystemTurn], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    mcp_servers: list[Any] | None = None
    thread: dict[str, Any] | None = None  # a conversation that the server holds: refused
    compaction: dict[str, Any] | None = None  # a summary instead of an answer: refused
    cache_control: Any = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    speed: Any = None


class MessagesRequest(Conversation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages."""

    max_tokens: Count
    stop_sequences: Annotated[list[StopString], Meta(max_length=64)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: TopK | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None


class CountTokensRequest(Conversation, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages/count_tokens."""
