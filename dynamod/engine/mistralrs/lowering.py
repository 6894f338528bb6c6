"""From a client's request to mistralrs', and from mistralrs' deltas to text."""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from dynamod.message import tokens
from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest, CompletionRequest
from dynamod.message.worker import Chat, Grammar, Stops
from dynamod.preprocess.conditions import check_token_ids
from dynamod.preprocess.conversation import check_messages
from dynamod.preprocess.model import Model, Prepared
from dynamod.preprocess.parse import Parser

_CHAT, _COMPLETION = Parser(ChatRequest), Parser(CompletionRequest)
_TAIL = 200
"""Characters of the prompt's end in which a marker of reasoning is looked for."""
_SAME = ("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")
"""Sampling options that mistralrs calls as we do."""


@dataclass(frozen=True, slots=True)
class LoweredRequest:
    """Fields of `mistralrs.ChatCompletionRequest`, the prompt's length, when to stop."""

    fields: dict[str, Any]
    prompt_tokens: int
    stops: Stops
    include_stop: bool


def prepare(model: Model, request: Chat) -> Prepared:
    """Read, check and render. Raises BadRequest."""
    if request.kind == "chat":
        chat, _ = _CHAT.parse(request.body)
        check_messages(chat.messages)
        return model.prepare_chat(chat)
    completion, _ = _COMPLETION.parse(request.body)
    prompt = completion.prompt
    if isinstance(prompt, list):
        ids = [one for one in prompt if isinstance(one, int)]
        if len(ids) != len(prompt):
            raise BadRequest("mistralrs takes one prompt at a time", param="prompt")
        check_token_ids(ids, "prompt", model.tokenizer.vocab_size)
        prompt = model.tokenizer.decode(ids, skip_special=False)
    return model.prepare_prompts(completion, [prompt])[0]


def form(model: Model, prepared: Prepared, grammar: Grammar) -> Grammar:
    """The form of the answer after this prompt, which only the worker has rendered. Raises BadRequest.

    The frontend expects reasoning in front of the form, or none, by the model's format alone. A prompt that has ended
    the reasoning leaves the form; one that has begun or ended it where the frontend cannot know that is refused.
    """
    special = model.tokenizer.special
    if grammar.calls in special:
        grammar = msgspec.structs.replace(grammar, calls="")  # no form allows a special token
    if not grammar.closing:
        return grammar
    tail = prepared.prompt[-_TAIL:].rstrip()
    begun = bool(grammar.opening) and tail.endswith(grammar.opening)
    if grammar.opening and not begun and (tail.endswith(grammar.closing) or grammar.opening in special):
        return msgspec.structs.replace(grammar, opening="", closing="")
    if begun or grammar.closing in special or tail.endswith(grammar.closing):
        why = "the prompt begins or ends the reasoning in front of the form, or its end is a special token"
        hint = "; `none` switches the reasoning off" if grammar.opening else ""
        raise BadRequest(f"`reasoning_effort`: with mistralrs {why}{hint}", param="reasoning_effort")
    return grammar


def lower(model: Model, prepared: Prepared, request_id: str, grammar: Grammar | None = None) -> LoweredRequest:
    """Tokenise (only to count) and translate. Safe in a thread. Raises BadRequest.

    `grammar`: the form of the answer. mistralrs has llguidance too, and takes its grammars as they are.
    """
    request = prepared.request
    if prepared.ids:
        raise BadRequest("mistralrs takes text, not token ids", param="nvext.token_data")
    if request.stop_token_ids:
        raise BadRequest("mistralrs cannot stop at token ids; use `stop`", param="stop_token_ids")
    generate = model.encode(prepared, request_id)
    sampling, stops = generate.sampling, generate.stops
    # mistralrs has no min_tokens; the usual benchmark (as many as there may be) can be had all the same.
    no_end = stops.max_tokens is not None and 0 < stops.max_tokens <= (stops.min_tokens or 0)
    # What is None mistralrs takes from generation_config.json or its own default. Our values have the model's already
    # in them, so "off" is a number; without a temperature it is 1, as in other engines.
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    top_k = sampling.top_k if sampling.top_k not in (None, -1) else model.tokenizer.vocab_size
    fields = {
        "messages": prepared.prompt,
        "model": "default",
        "stream": True,
        "temperature": temperature,
        "top_k": top_k if temperature else None,
        **{name: getattr(sampling, name) for name in _SAME},
        "max_tokens": stops.max_tokens,
        "ignore_eos": bool(stops.ignore_eos) or no_end,
        # With logprobs there is a delta for each token, and the bytes of each: what `PlainText` needs to be exact. They
        # cost time in large vocabularies, so they are requested only where it shows.
        "logprobs": bool(stops.stop or stops.min_tokens) or request.continues_prompt or grammar is not None,
        **(_form_fields(grammar) if grammar is not None else {}),
    }
    return LoweredRequest(fields, tokens.count(generate.token_ids), stops, bool(request.include_stop_str_in_output))


def _form_fields(grammar: Grammar) -> dict[str, Any]:
    """Fields of mistralrs' request. Raises BadRequest."""
    from dynamod.structured.source import source  # most requests have no form

    try:
        text = source(grammar, fixed_spaces=True)
    except ValueError as error:  # an ingress of another version has not refused it
        raise BadRequest(f"the form of the answer is not well formed: {error}") from None
    return {"grammar": text, "grammar_type": "llguidance" if text.startswith("{") else "lark"}


class PlainText:
    """Deltas back to the text of the model.

    mistralrs cuts white space off the first delta, and for some models takes thoughts and tool calls out of the text.
    The ingress parses those for all engines, so they are put back in the most common form.
    """

    def __init__(self) -> None:
        self._thinking = False
        self._first = True

    def of(self, choice: Any) -> str:
        """The text of one chunk's choice."""
        delta, parts = choice.delta, list[str]()
        content = delta.content or ""
        if self._first:
            self._first = False
            content = _uncut(content, choice.logprobs)
        if delta.reasoning_content:
            parts += [] if self._thinking else ["<think>\n"]
            parts.append(delta.reasoning_content)
            self._thinking = True
        if self._thinking and (content or delta.tool_calls):
            parts.append("\n</think>\n\n")
            self._thinking = False
        parts.append(content)
        for call in delta.tool_calls or ():
            name, arguments = json.dumps(call.function.name), call.function.arguments or "{}"
            parts.append(f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>')
        return "".join(parts)


def _uncut(content: str, logprobs: Any) -> str:
    """The first delta with the white space that its token began with, when the token is known."""
    if logprobs is None or not logprobs.bytes:
        return content
    whole = bytes(logprobs.bytes).decode(errors="ignore")
    return whole if whole.endswith(content) and whole.removesuffix(content).isspace() else content
