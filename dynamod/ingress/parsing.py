"""Reasoning and calls of tools in answers: which parsers a model has, and how what they read reaches clients."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.message.openai import ChatRequest, Common, EngineFields
from dynamod.message.schemas import parameters_of
from dynamod.message.worker import Grammar
from dynamod.parsers import (
    AUTO,
    NONE,
    TURN_CHARS,
    Arguments,
    BehindReasoning,
    Broken,
    CallStart,
    Content,
    Dropped,
    OutputParser,
    Reasoning,
    Segment,
    ToolSpec,
    choose,
    keeping_cut,
    make_parser,
    opening_of,
    thinking_of,
    written_calls,
)
from dynamod.preprocess.conversation import kwargs_of
from dynamod.preprocess.model import Model

from .base import NO_CALLS, CallForm, Logprob, ResponseSink

log = logging.getLogger("dynamod.frontend")

PLAIN_CALLS, OPENING = "llama3_json", "<|python_tag|>"
"""The parser of calls in plain JSON, and the marker after which nothing else comes."""

_JSON_BEGINS = ("", *'{["-0123456789tfn')
_SWITCHES = ("enable_thinking", "thinking")
"""Variables of templates that switch reasoning off."""

ChoiceParser = OutputParser | BehindReasoning
NewParser = Callable[[str, str], ChoiceParser]
"""The parser of a choice, by the rendered prompt and what ids of calls are made of."""


def skips_special(request: Common, card: ModelCard) -> bool:
    """Whether clients get answers without the special tokens: as they say, else as the engine's answers are."""
    asked = request.skip_special_tokens
    return asked if asked is not None else not card.capabilities.verbatim


class ModelParsers:
    """The parsers of a model: the ones named by its card, else the ones that its chat template shows. None: text stays.

    Only the worker of a text engine knows the template. `card`: the card with the names of the parsers in use.
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
        self._said = False

    @staticmethod
    def _named(name: str, found: str | None) -> str | None:
        return None if name == NONE else found if name in AUTO else name

    def of(self, request: ChatRequest, special: Sequence[str]) -> NewParser | None:
        """What makes the parsers of a request's choices; None where its text stays as it is.

        `special`: the tokenizer's special tokens.
        """
        offered = request.tools if request.tool_choice != "none" else None
        tool, shown = self.tool_call if offered else None, special if skips_special(request, self.card) else ()
        if tool is None and self.reasoning is None:
            return None
        tools = _specs(offered or ())

        def make(prompt: str, seed: str) -> OutputParser:
            return make_parser(tool, self.reasoning, tools, seed=seed, prompt=prompt, special=shown)

        return make

    def written(self, request: ChatRequest, special: Sequence[str]) -> dict[str, Any] | None:
        """The form of calls that have to come in the model's own format; None: it has none that says them.

        `special`: the tokenizer's special tokens.
        """
        if self.tool_call is None:
            return None
        choice, tools = request.tool_choice, _specs(request.tools or ())
        if isinstance(choice, dict):
            tools = [one for one in tools if one.name == choice["function"]["name"]]
        several = not isinstance(choice, dict) and request.parallel_tool_calls is not False
        return written_calls(self.tool_call, tools, special, several=several)

    def forced(self, request: ChatRequest, special: Sequence[str], *, written: bool) -> NewParser:
        """As `of`, for an answer that is calls from its first token on.

        `written`: in the model's own format, else in the form of `structured.calls`.
        """
        tools = _specs(request.tools or ())

        def make(prompt: str, seed: str) -> OutputParser:
            if written:
                return keeping_cut(make_parser(self.tool_call, None, tools, seed=seed, prompt=prompt, special=special))
            parser = keeping_cut(make_parser(PLAIN_CALLS, None, tools, seed=seed))
            parser.feed(OPENING)  # else what is cut off before the tool's name would be text
            return parser

        return make

    def only_asked(self) -> None:
        """Say once that calls that have to come are not enforced for this model."""
        if not self._said:
            self._said = True
            why = "its engine has no grammars, so the model is only asked for a call"
            log.warning("model %s: `tool_choice` is not enforced: %s", self.card.name, why)

    def before_form(self, request: ChatRequest, prompt: str, special: Sequence[str]) -> tuple[str, str]:
        """The markers of reasoning in front of a form (see `Thinking.before_form`); empty: there is none."""
        if self.reasoning is None:
            return "", ""
        markers = thinking_of(self.reasoning).before_form(prompt, special) or ("", "")
        variables = kwargs_of(request)
        off = variables.get("reasoning_effort") == "none" or any(variables.get(name) is False for name in _SWITCHES)
        return ("", "") if off and markers[0] else markers

    def before_calls(self, request: ChatRequest, special: Sequence[str]) -> str:
        """The marker of calls that may come instead of a JSON form; empty: none may.

        None, too, where a marker is a `special` token, which no form allows, or may begin JSON.
        """
        if self.tool_call is None or not request.tools or request.tool_choice not in (None, "auto"):
            return ""
        opening, unseen = opening_of(self.tool_call, special)
        return "" if unseen or opening[:1] in _JSON_BEGINS else opening

    def with_form(self, request: ChatRequest, form: Grammar, rest: NewParser | None) -> NewParser:
        """As `rest`, or what leaves text as it is, after reasoning; or calls instead of the form."""
        tools = _specs(request.tools or ())

        def make(prompt: str, seed: str) -> ChoiceParser:
            parser = rest(prompt, seed) if rest is not None else None
            assert not isinstance(parser, BehindReasoning)
            calls = (form.calls, make_parser(self.tool_call, None, tools, seed=seed)) if form.calls else None
            return BehindReasoning(form.opening, form.closing, parser, calls)

        return make


def most_calls(request: EngineFields) -> int | None:
    """Calls of tools that an answer may have; None: any number."""
    return 1 if isinstance(request, ChatRequest) and request.parallel_tool_calls is False else None


def _specs(tools: Sequence[Mapping[str, Any]]) -> list[ToolSpec]:
    """Of the tools that are functions: a text engine may have others."""
    functions = [one.get("function") for one in tools]
    return [_spec(one) for one in functions if isinstance(one, dict) and isinstance(one.get("name"), str)]


def _spec(function: Mapping[str, Any]) -> ToolSpec:
    parameters = parameters_of(function)
    return ToolSpec(function["name"], parameters if isinstance(parameters, dict) else {})


class ParsedChoice:
    """What one choice has said of calls and reasoning. `most`: calls that its answer may have. `pieces`: arguments of
    calls come as they are certain.

    `waits`: the next text is no plain content in any case, or decides about tokens before it.
    """

    def __init__(self, parser: ChoiceParser, most: int | None, *, pieces: bool = False) -> None:
        self.parser, self._most, self._pieces = parser, most, pieces
        self._open: tuple[CallStart, list[str]] | None = None  # a call, and arguments of which nothing was said
        self._begun = False  # its beginning was said
        self.calls = self.reasoning_tokens = 0
        self.waits = self._inside = parser.reasoning
        self._undecided = 0  # tokens of which the parser has said nothing yet: they may begin a marker

    def count(self, segments: Sequence[Segment], tokens: int) -> None:
        """Count tokens that are reasoning, its markers too. A piece of text that has both counts as reasoning."""
        before, self._inside = self._inside, self.parser.reasoning
        if before or self._inside or any(type(segment) is Reasoning for segment in segments):
            self.reasoning_tokens += self._undecided + tokens
            self._undecided = 0
        else:
            self._undecided = 0 if segments else self._undecided + tokens

    def deltas(self, segments: Sequence[Segment]) -> list[str | dict[str, Any]]:
        """Content as text, the rest as members of a delta.

        A call is one delta, when it is known to be complete; or its beginning, and then its arguments in pieces.
        """
        found: list[str | dict[str, Any]] = []
        for segment in segments:
            if isinstance(segment, Arguments):
                if self._open is not None:
                    self._open[1].append(segment.text)
                continue
            if isinstance(segment, Dropped):
                self._open = None if segment.index is not None else self._open
                log.warning("a call of the tool %r is dropped: it is %s", segment.name, segment.why)
                continue
            if isinstance(segment, Broken):
                why = "its arguments are no JSON object and reach the client as they are"
                log.warning("a call of the tool %r is %s: %s", segment.name, segment.why, why)
                continue
            found += self.close()
            if isinstance(segment, CallStart):
                self._open = segment, []
            elif isinstance(segment, Content):
                found.append(segment.text)
            else:
                found.append({"reasoning_content": segment.text})
        if self._pieces:
            found += self._said()
        self.waits = self._open is not None or self._inside or self._undecided > 0
        return found

    def close(self) -> list[str | dict[str, Any]]:
        """The call that is complete when something else follows, or nothing."""
        found = self._said()
        self._open, self._begun = None, False
        return found

    def _said(self) -> list[str | dict[str, Any]]:
        """What has come of the open call since this was called last."""
        if self._open is None or (self.calls == self._most and not self._begun):
            return []
        start, pieces = self._open
        arguments = "".join(pieces)
        pieces.clear()
        if self._begun:
            call = {"index": self.calls - 1, "function": {"arguments": arguments}}
            return [{"tool_calls": [call]}] if arguments else []
        self._begun = True
        self.calls += 1
        function = {"name": start.name, "arguments": arguments}
        return [{"tool_calls": [{"index": self.calls - 1, "id": start.id, "type": "function", "function": function}]}]


def content_of(chunk: Any) -> tuple[str, Any]:
    """The content of a chunk that an engine has made, and the chunk without it; None: nothing is left.

    Empty for a chunk of several choices, or with calls in it: its engine has parsed it.
    """
    parts = chunk.get("choices") if isinstance(chunk, dict) else None
    part = parts[0] if isinstance(parts, list) and len(parts) == 1 else None
    delta = part.get("delta") if isinstance(part, dict) else None
    if part is None or not isinstance(delta, dict) or delta.get("tool_calls"):
        return "", chunk
    if not isinstance(delta.get("content"), str):
        return "", chunk
    rest = {name: value for name, value in delta.items() if name not in ("content", "role") and value is not None}
    others = {name: value for name, value in part.items() if name not in ("delta", "index", "finish_reason")}
    kept = {**chunk, "choices": [{**others, "delta": rest}]} if rest or any(others.values()) else None
    if kept is None and chunk.get("usage"):
        kept = {"choices": [], "usage": chunk["usage"]}
    return delta["content"], kept


class ParsedSink:
    """Passes an answer on, with its reasoning and its calls as the deltas of a chat.

    A text that is longer than TURN_CHARS is read in several turns of the event loop, so that other streams do not wait
    for it. What comes meanwhile waits: the order of the answer stays.
    """

    def __init__(
        self, sink: ResponseSink, parsers: Sequence[ChoiceParser], most: int | None, calls: CallForm = NO_CALLS
    ) -> None:
        self._sink = sink
        for parser in parsers if calls.stays else ():
            parser.keep_calls(pieces=calls.pieces)
        self._choices = [ParsedChoice(parser, most, pieces=calls.pieces) for parser in parsers]
        self._feed = [parser.feed for parser in parsers]
        self._later = deque[Callable[[], None]]()  # calls that wait for a text which is read in turns
        self._turning = False
        self.started, self.fail = sink.started, sink.fail
        self.echoed, self.prompt_logprobs = sink.echoed, sink.prompt_logprobs
        self.placed, self.recorded = sink.placed, sink.recorded

    def text(self, index: int, text: str, tokens: int) -> None:
        """Once per token: mostly one piece of content."""
        if self._later:
            self._later.append(partial(self._text, index, text, tokens))
        else:
            self._text(index, text, tokens)

    def _text(self, index: int, text: str, tokens: int) -> None:
        segments, choice = self._feed[index](text, TURN_CHARS), self._choices[index]
        if len(segments) == 1 and type(segments[0]) is Content and not choice.waits:
            self._sink.text(index, segments[0].text, tokens)
        else:
            choice.count(segments, tokens)
            self._sink.text(index, "", tokens)
            self._pass(index, choice.deltas(segments))
        if choice.parser.waiting:
            self._next(partial(self._rest, index))

    def _rest(self, index: int) -> None:
        """One more turn of a text."""
        choice = self._choices[index]
        segments = choice.parser.feed("", TURN_CHARS)
        choice.count(segments, 0)
        self._pass(index, choice.deltas(segments))
        if choice.parser.waiting:
            self._next(partial(self._rest, index))

    def _next(self, *calls: Callable[[], None]) -> None:
        """These calls come before all that wait, one per turn of the event loop."""
        self._later.extendleft(reversed(calls))
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        try:
            if self._later:
                self._later.popleft()()
        finally:
            self._turning = bool(self._later)
            if self._turning:
                asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> None:
        """Read nothing more, call the sink no more: the client has left, or the request has failed."""
        self._later.clear()

    def _in_order(self, call: Callable[[], None]) -> None:
        if self._later:
            self._later.append(call)
        else:
            call()

    def logprobs(self, index: int, entries: tuple[Logprob, ...]) -> None:
        """After the text that came before."""
        self._in_order(partial(self._sink.logprobs, index, entries))

    def chunk(self, index: int, chunk: Any) -> None:
        """After the text that came before. Content of a chat's delta is text of the model, which is parsed."""
        text, rest = content_of(chunk)
        if rest is not None:
            self._in_order(partial(self._sink.chunk, index, rest))
        if text:
            self.text(index, text, 0)

    def counted(self, index: int, *, cached_tokens: int | None = None, reasoning_tokens: int | None = None) -> None:
        """Numbers, which have no order."""
        self._sink.counted(index, cached_tokens=cached_tokens, reasoning_tokens=reasoning_tokens)

    def _pass(self, index: int, deltas: Sequence[str | dict[str, Any]]) -> None:
        for delta in deltas:
            if isinstance(delta, str):
                self._sink.text(index, delta, 0)
            else:
                self._sink.chunk(index, {"choices": [{"delta": delta}]})

    def finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None = None) -> None:
        """With the calls that the end completes."""
        self._in_order(partial(self._finish, index, reason, completion_tokens, prompt_tokens))

    def _finish(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None) -> None:
        choice = self._choices[index]
        self._pass(index, choice.deltas(choice.parser.finish(reason, TURN_CHARS)))
        finished = partial(self._finished, index, reason, completion_tokens, prompt_tokens)
        if choice.parser.waiting:
            self._next(partial(self._rest, index), finished)
        else:
            finished()

    def _finished(self, index: int, reason: str, completion_tokens: int, prompt_tokens: int | None) -> None:
        choice = self._choices[index]
        self._pass(index, choice.close())
        if choice.parser.reasons:
            self._sink.counted(index, reasoning_tokens=choice.reasoning_tokens)
        if reason == "stop" and choice.calls:
            reason = "tool_calls"
        self._sink.finish(index, reason, completion_tokens, prompt_tokens)
