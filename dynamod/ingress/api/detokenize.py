"""POST /detokenize, as vLLM has it."""

import asyncio

import msgspec
from aiohttp import web

from dynamod.http.context import RequestContext
from dynamod.http.errors import json_response
from dynamod.message.discovery import ModelCard
from dynamod.message.openai import ModelRequest, TokenId
from dynamod.preprocess.checks import token_ids

from .endpoint import BodyEndpoint, Frontend

_THREAD_AT = 10_000  # ids; at most about 1 ms of work


class DetokenizeRequest(ModelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token ids of the model's vocabulary."""

    tokens: list[TokenId]


class DetokenizeResponse(msgspec.Struct):
    """The text of the ids, special tokens included."""

    prompt: str


class Detokenize(BodyEndpoint[DetokenizeRequest]):
    """Token ids as text."""

    path = "/detokenize"
    summary = "The text of token ids"
    request = DetokenizeRequest
    response = DetokenizeResponse

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: DetokenizeRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """The text; many ids are decoded in a thread. Raises BadRequest for an id outside the vocabulary."""
        tokenizer = frontend.tokenizing(asked.model).tokenizer
        token_ids(asked.tokens, "tokens", tokenizer.vocab_size)
        if len(asked.tokens) > _THREAD_AT:
            text = await asyncio.to_thread(tokenizer.decode, asked.tokens, skip_special=False)
        else:
            text = tokenizer.decode(asked.tokens, skip_special=False)
        return json_response(DetokenizeResponse(text))
