"""POST /tokenize, as vLLM has it."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.ingress.api.endpoint import BodyEndpoint, Frontend
from dynamod.ingress.api.rules import either, items, only
from dynamod.ingress.large import apart
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, TooLarge, unsupported
from dynamod.message.openai import ChatRequest, Messages, ModelRequest
from dynamod.preprocess.conversation import check_messages
from dynamod.preprocess.parse import LARGE
from dynamod.preprocess.tokenizer import Tokenizer

_LONGEST = 8_000_000
"""Characters of a text; the ids of more would keep other requests waiting while they are written."""
_SAYS = {"properties": {"content": {"type": "string", "pattern": "[!-~]"}}, "required": ["content"]}
_RENDERED = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class TokenizeRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either `prompt` or `messages`. `add_special_tokens`: by default for a prompt only; templates write their own."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class TokenizeResponse(msgspec.Struct):
    """Token ids of the text; `token_strs`: how the vocabulary writes them. A `max_model_len` of 0 is not known."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Tokenize(BodyEndpoint[TokenizeRequest]):
    """A text, or a conversation in the model's template, as token ids."""

    path = "/tokenize"
    summary = "Token ids of a text or a conversation"
    request = TokenizeRequest
    response = TokenizeResponse
    rules = (
        either(
            {"properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}, "required": ["prompt"]},
            {"properties": {"prompt": {"type": "null"}, "messages": {"type": "array"}}, "required": ["messages"]},
        ),
        either(only(continue_final_message=(False, None)), only(add_generation_prompt=(False, None))),
        # What the last message says must be found again in the prompt; a schema cannot tell which one that is.
        either(only(continue_final_message=(False, None)), {"properties": {"messages": items(_SAYS)}}),
    )

    def check(self, request: TokenizeRequest) -> None:
        """One of the two, and messages as in a chat."""
        if request.chat_template is not None:
            raise unsupported("chat_template", "`chat_template` is not served; the model's own is used")
        if request.messages is None:
            if request.prompt is None:
                raise BadRequest("`prompt` or `messages` is required", param="prompt")
        elif request.prompt is not None:
            raise BadRequest("`messages` and `prompt` exclude each other", param="messages")
        else:
            check_messages(request.messages)

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: TokenizeRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """The ids; a long text is tokenised in a thread. Raises TooLarge."""
        model = frontend.tokenizing(asked.model)
        text, special = asked.prompt or "", asked.add_special_tokens is not False
        if asked.messages is not None:
            special = bool(asked.add_special_tokens)
            _check_length(sum([message.length for message in asked.messages]), "messages")
            chat = ChatRequest(**{name: getattr(asked, name) for name in _RENDERED})
            text = await apart(model.render, chat) if len(body) > LARGE else model.render(chat)
        _check_length(len(text), "prompt" if asked.messages is None else "messages")
        arguments = (model.tokenizer, text, special, bool(asked.return_token_strs))
        thread = model.needs_thread(text)
        ids, strings = await asyncio.to_thread(_tokenized, *arguments) if thread else _tokenized(*arguments)
        return json_response(TokenizeResponse(len(ids), card.context_length, ids, strings))


def _check_length(characters: int, param: str) -> None:
    if characters > _LONGEST:
        raise TooLarge(f"`{param}` has more than {_LONGEST} characters", param=param)


def _tokenized(tokenizer: Tokenizer, text: str, special: bool, strings: bool) -> tuple[list[int], list[str] | None]:
    ids = tokenizer.encode(text, special)
    return ids, [tokenizer.token(index) for index in ids] if strings else None


class TokenizeBelow(Tokenize):
    """The same below /v1."""

    path = "/v1/tokenize"
