"""Reasoning and calls of tools in answers: which parsers a model has, and how what they read reaches clients."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.message.openai import ChatRequest, EngineFields
from dynamod.parsers import (
    NONE,
    Arguments,
    CallStart,
    Content,
    Dropped,
    OutputParser,
    Segment,
    ToolSpec,
    choose,
    make_parser,
)
from dynamod.preprocess.model import Model

from .base import ResponseSink

log = logging.getLogger("dynamod.frontend")

PLAIN_CALLS, OPENING = "llama3_json", "<|python_tag|>"
"""The parser of calls in plain JSON, and the marker behind which nothing else comes."""

NewParser = Callable[[str, str], OutputParser]
"""The parser of a choice, by the rendered prompt and what ids of calls are made of."""


class ModelParsers:
    """The parsers of a model: those that its card names, else those that its chat template shows. None: text stays.

    Of a text engine only its worker knows the template. `card`: with the names of those that are used.
    """

    def __init__(self, card: ModelCard, model: Model | None) -> None:
        tool, reasoning = choose(model.template_source) if model is not None else (None, None)
        self.tool_call = self._named(card.tool_call_parser, tool)
        self.reasoning = self._named(card.reasoning_parser, reasoning)
        try:
            make_parser(self.tool_call, self.reasoning)
        except UserError as error:  # of a card by another version
            log.error("model %s: its answers are not parsed: %s", card.name, error.line())
            self.tool_call = self.reasoning = None
        names = {"tool_call_parser": self.tool_call or NONE, "reasoning_parser": self.reasoning or NONE}
        self.card = msgspec.structs.replace(card, **names)

    @staticmethod
    def _named(name: str, found: str | None) -> str | None:
        return None if name == NONE else name or found

    def of(self, request: ChatRequest, special: Sequence[str]) -> NewParser | None:
        """What makes the parsers of a request's choices; None where its text stays as it is.

        `special`: the tokenizer's special tokens.
        """
        offered = request.tools if request.tool_choice != "none" else None
        tool, shown = self.tool_call if offered else None, special if request.skip_special_tokens is not False else ()
        if tool is None and self.reasoning is None:
            return None
        tools = _specs(offered or ())

        def make(prompt: str, seed: str) -> OutputParser:
            return make_parser(tool, self.reasoning, tools, seed=seed, prompt=prompt, special=shown)

        return make

    def forced(self, request: ChatRequest) -> NewParser:
        """As `of`, for an answer that is calls from its first token on, in the form of `structured.calls`."""
        tools = _specs(request.tools or ())

        def make(_prompt: str, seed: str) -> OutputParser:
            parser = make_parser(PLAIN_CALLS, None, tools, seed=seed)
            parser.feed(OPENING)  # else what is cut off before the tool's name would be text
            return parser

        return make


def most_calls(request: EngineFields) -> int | None:
    """Calls of tools that an answer may have; None: any number."""
    return 1 if isinstance(request, ChatRequest) and request.parallel_tool_calls is False else None


def _specs(tools: Sequence[Mapping[str, Any]]) -> list[ToolSpec]:
    """Of the tools that are functions: a text engine may have others."""
    functions = [one.get("function") for one in tools]
    return [_spec(one) for one in functions if isinstance(one, dict) and isinstance(one.get("name"), str)]


def _spec(function: Mapping[str, Any]) -> ToolSpec:
    parameters = function.get("parameters")
    return ToolSpec(function["name"], parameters if isinstance(parameters, dict) else {})


class ParsedChoice:
    """What one choice has said of calls. `most`: calls that its answer may have."""

    def __init__(self, parser: OutputParser, most: int | None) -> None:
        self.parser, self._most = parser, most
        self._open: tuple[CallStart, list[str]] | None = None
        self.calls = 0
        self.truncated = False

    def deltas(self, segments: Sequence[Segment]) -> list[str | dict[str, Any]]:
        """Content as text, the rest as members of a delta. A call is one delta, when it is known to be complete."""
        found: list[str | dict[str, Any]] = []
        for segment in segments:
            if isinstance(segment, Arguments):
                if self._open is not None:
                    self._open[1].append(segment.text)
                continue
            if isinstance(segment, Dropped):
                self._open = None if segment.index is not None else self._open
                self.truncated = self.truncated or segment.why == "truncated"
                log.warning("a call of the tool %r is dropped: it is %s", segment.name, segment.why)
                continue
            found += self.close()
            if isinstance(segment, CallStart):
                self._open = segment, []
            elif isinstance(segment, Content):
                found.append(segment.text)
            else:
                found.append({"reasoning_content": segment.text})
        return found

    @property
    def waits(self) -> bool:
        """Whether a call has begun that may not be complete."""
        return self._open is not None

    def close(self) -> list[str | dict[str, Any]]:
        """The call that is complete when something else follows, or nothing."""
        if self._open is None:
            return []
        (start, arguments), self._open = self._open, None
        if self.calls == self._most:
            return []
        self.calls += 1
        function = {"name": start.name, "arguments": "".join(arguments)}
        return [{"tool_calls": [{"index": self.calls - 1, "id": start.id, "type": "function", "function": function}]}]


class ParsedSink:
    """Passes an answer on, with its reasoning and its calls as the deltas of a chat."""

    def __init__(self, sink: ResponseSink, parsers: Sequence[OutputParser], most: int | None) -> None:
        self._sink = sink
        self._choices = [ParsedChoice(parser, most) for parser in parsers]
        self._feed = [parser.feed for parser in parsers]
        self.started, self.logprobs, self.chunk, self.fail = sink.started, sink.logprobs, sink.chunk, sink.fail

    def text(self, index: int, text: str, tokens: int) -> None:
        """Once per token: mostly one piece of content."""
        segments = self._feed[index](text)
        if len(segments) == 1 and type(segments[0]) is Content and not self._choices[index].waits:
            self._sink.text(index, segments[0].text, tokens)
            return
        self._sink.text(index, "", tokens)
        self._pass(index, self._choices[index].deltas(segments))

    def _pass(self, index: int, deltas: Sequence[str | dict[str, Any]]) -> None:
        for delta in deltas:
            if isinstance(delta, str):
                self._sink.text(index, delta, 0)
            else:
                self._sink.chunk(index, {"choices": [{"delta": delta}]})

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        """With the calls that the end completes. A call that was cut off ends the choice with "length"."""
        choice = self._choices[index]
        self._pass(index, [*choice.deltas(choice.parser.finish(reason)), *choice.close()])
        if reason == "stop" and choice.truncated:
            reason = "length"
        elif reason == "stop" and choice.calls:
            reason = "tool_calls"
        self._sink.finish(index, reason, completion_tokens, prompt_tokens)
