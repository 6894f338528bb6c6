"""Calls to workers that ship: a request in NVIDIA Dynamo's words as the one that they take, and their answers back."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dynamod.actor import unseen
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest
from dynamod.message.ingress import Delta, Text, Tokens
from dynamod.message.worker import Call, Chat, Generate, Request, Sampling, Stops


def request_for(card: ModelCard | None, number: str, payload: Any) -> Request:
    """The request for an instance that has published this card (None: it serves no model).

    Token engines get a PreprocessedRequest (see `requests.preprocessed`), text engines an OpenAI request. Raises
    BadRequest when the payload is none.
    """
    if card is None or card.engine == "python":  # a handler takes whatever it wants to take
        return Call(number, payload)
    if not isinstance(payload, Mapping):
        raise BadRequest(f"model {card.name!r} takes a dict, not {type(payload).__name__}")
    return _generate(card, number, payload) if card.kind == "tokens" else _chat(card, number, payload)


def _generate(card: ModelCard, number: str, payload: Mapping[str, Any]) -> Generate:
    stops = payload.get("stop_conditions") or {}
    options = {**(payload.get("output_options") or {}), **(payload.get("sampling_options") or {})}
    try:
        return Generate(
            number,
            card.name,
            tokens.pack(payload["token_ids"]),
            _struct(Stops, stops),
            _struct(Sampling, options),
            tuple(payload.get("eos_token_ids") or card.eos_token_ids),
            card.mdc_sum,
            tuple(payload.get("annotations") or ()),
        )
    except KeyError:
        raise BadRequest(f"model {card.name!r} takes token_ids", param="token_ids") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"the request for model {card.name!r} cannot be read: {error}") from None


def _struct(kind: Any, given: Mapping[str, Any]) -> Any:
    """What is said of a struct's fields, with their types; what it does not know is left out."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind) if given.get(field.name) is not None}
    return kind(**{name: msgspec.convert(given[name], of, strict=False) for name, of in fields.items()})


def _chat(card: ModelCard, number: str, payload: Mapping[str, Any]) -> Chat:
    kind: Literal["chat", "completion"] = "chat" if "messages" in payload else "completion"
    limit = payload.get("max_completion_tokens") or payload.get("max_tokens")
    body = msgspec.json.encode({"model": card.name, **payload})
    return Chat(number, card.name, kind, body, max_tokens=limit if isinstance(limit, int) else None)


class Answer:
    """Items for deltas of tokens and text, in NVIDIA Dynamo's words: LLMEngineOutput dicts and OpenAI chunks."""

    def __init__(self) -> None:
        self._received = 0

    def item(self, delta: Delta) -> dict[str, Any] | None:
        """The item for a delta; None when it says nothing new. Raises StreamGap."""
        match delta:
            case Tokens(_, offset, packed, finish):
                skip = unseen(self._received, offset, tokens.count(packed))
                ids = list(tokens.unpack(packed))[skip:]
                self._received += len(ids)
                return {"token_ids": ids, "finish_reason": finish} if ids or finish else None
            case Text(_, offset, text, _, finish, _):
                text = text[unseen(self._received, offset, len(text)) :]
                self._received += len(text)
                choice = {"index": 0, "delta": {"content": text}, "text": text, "finish_reason": finish}
                return {"object": "chat.completion.chunk", "choices": [choice]} if text or finish else None
            case _:
                return None
