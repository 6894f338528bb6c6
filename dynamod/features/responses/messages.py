"""What clients of OpenAI's Responses API send, as far as dynamod reads it.

An item of the input is a message unless its `type` says something else. Fields of type `Any` change nothing in the
answer.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dynamod.message.openai import Count, Effort, EngineFields, ModelRequest, TopLogprobs

Name = Annotated[str, Meta(min_length=1)]

TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
"""Types of parts that are text."""
ROLES = ("user", "system", "developer", "assistant")


class InputPart(msgspec.Struct, frozen=True):
    """One part of an item's content. Only text is served; what an assistant has refused is its text."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def words(self) -> str:
        """Its text."""
        return (self.refusal if self.type == "refusal" else self.text) or ""


class InputItem(msgspec.Struct, frozen=True):
    """A message, a call of a tool, what that has returned, or reasoning of an earlier answer.

    `namespace`: of the tool that was called. `input`: of a call of a custom tool.
    """

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    encrypted_content: str | None = None
    status: str | None = None
    namespace: str | None = None
    input: str | None = None


class FunctionTool(msgspec.Struct, frozen=True):
    """A function that the client runs, a custom tool, a namespace of both, or a tool that is left out (tools.HOSTED).

    `parameters`: JSON schema of a function's arguments. `format`: of a custom tool's input, a text or a grammar.
    `tools`: of a namespace.
    """

    type: str
    name: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None
    format: Any = None
    tools: "list[FunctionTool] | None" = None


class ReasoningConfig(msgspec.Struct, frozen=True):
    """`effort`: for templates that read it. `summary`: reasoning comes as the summary of its item, whole as it is."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(msgspec.Struct, frozen=True):
    """The form of the answer's text; others than text need an engine with grammars."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, frozen=True):
    """How the text of the answer is."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(EngineFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses."""

    input: str | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: ReasoningConfig | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    text: TextConfig | None = None
    tool_choice: Any = None
    tools: list[FunctionTool] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    top_logprobs: TopLogprobs | None = None
    context_management: Any = None
    include: list[str] | None = None
    max_tool_calls: Any = None
    stream_options: Any = None
    truncation: Any = None


class InputTokensRequest(ResponsesRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses/input_tokens. Without `input`: the tokens of instructions, tools and the conversation."""

    input: str | Annotated[list[InputItem], Meta(min_length=1)] = ""


class CompactRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses/compact, which is refused."""
