"""POST /v1/chat/completions/render, as vLLM has it: the prompt that a chat request becomes; nothing is generated."""

import asyncio

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.ingress.api.chat import ChatCompletions
from dynamod.ingress.api.endpoint import BodyEndpoint, Frontend
from dynamod.ingress.large import apart
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.openai import ChatRequest
from dynamod.preprocess.parse import LARGE

_CHAT = ChatCompletions()


class RenderedChat(msgspec.Struct):
    """What engines get. `prompt`: the text of `token_ids`, empty where the request has named ids itself."""

    request_id: str
    model: str
    prompt: str
    token_ids: list[int]
    max_model_len: int


class Render(BodyEndpoint[ChatRequest]):
    """A chat request as its prompt. The request is the same, and so are its refusals."""

    path = "/v1/chat/completions/render"
    summary = "The prompt of a chat request, as text and token ids"
    request = ChatRequest
    response = RenderedChat
    model_type = "chat"
    rules = ChatCompletions.rules

    def check(self, request: ChatRequest) -> None:
        """As for an answer."""
        _CHAT.check(request)

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: ChatRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """The prompt; a long one is tokenised in a thread. Raises BadRequest."""
        model = frontend.tokenizing(asked.model)
        large = len(body) > LARGE
        [prepared] = await apart(_CHAT.prompts, model, asked) if large else _CHAT.prompts(model, asked)
        thread = large or model.needs_thread(prepared.prompt)
        arguments = (prepared, context.id)
        generate = await asyncio.to_thread(model.encode, *arguments) if thread else model.encode(*arguments)
        ids = list(tokens.unpack(generate.token_ids))
        return json_response(RenderedChat(context.id, card.name, prepared.prompt, ids, card.context_length))
