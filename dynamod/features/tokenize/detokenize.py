"""POST /detokenize, as vLLM has it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from aiohttp import web

from dynamod.http.answer import json_response
from dynamod.http.context import RequestContext
from dynamod.ingress.api.endpoint import BodyEndpoint, Frontend
from dynamod.message.discovery import ModelCard
from dynamod.message.openai import ModelRequest, TokenId
from dynamod.preprocess.conditions import check_token_ids
from dynamod.preprocess.tokenizer import Tokenizer

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
    values: ClassVar[Mapping[str, Any]] = {"DetokenizeRequest": {"examples": [{"tokens": [72, 101]}]}}
    response = DetokenizeResponse

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: DetokenizeRequest, card: ModelCard, body: bytes
    ) -> web.Response:
        """The text; many ids are decoded in a thread. Raises BadRequest for an id outside the vocabulary."""
        arguments = (frontend.tokenizing(asked.model).tokenizer, asked.tokens)
        thread = len(asked.tokens) > _THREAD_AT
        text = await asyncio.to_thread(_text, *arguments) if thread else _text(*arguments)
        return json_response(DetokenizeResponse(text))


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    check_token_ids(ids, "tokens", tokenizer.vocab_size)
    return tokenizer.decode(ids, skip_special=False)


class DetokenizeBelow(Detokenize):
    """The same below /v1."""

    path = "/v1/detokenize"
