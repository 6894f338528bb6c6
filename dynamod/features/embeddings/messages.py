"""Requests of /v1/embeddings, /v1/score and /v1/rerank."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.message.openai import Count, EngineFields, TokenId

Inputs = str | Annotated[list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1)]], Meta(min_length=1)]
"""A string, a list of strings, token ids, or a list of lists of token ids."""


class EmbeddingsRequest(EngineFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings. `dimensions`: numbers of each vector, where the model's vectors may be cut."""

    input: Inputs
    encoding_format: str | None = None
    dimensions: Count | None = None


Texts = str | Annotated[list[str], Meta(min_length=1)]


class ScoreRequest(EngineFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/score: how alike each of `text_1` is to the one of `text_2` at its place; one may stand for all."""

    text_1: Texts
    text_2: Texts


class Document(msgspec.Struct, frozen=True):
    """A text in an object."""

    text: str


class RerankRequest(EngineFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/rerank. `top_n`: how many are in the answer, 0: all."""

    query: str
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    return_documents: bool | None = None
