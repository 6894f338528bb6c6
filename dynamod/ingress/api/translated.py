"""Chat requests that were made of requests in another form."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from dynamod.http.context import RequestContext
from dynamod.ingress.base import Job
from dynamod.ingress.large import apart
from dynamod.ingress.lowering import Lowered, Served
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, TooLarge
from dynamod.message.openai import ChatRequest, Message, Part
from dynamod.preprocess.model import Model, Prepared
from dynamod.preprocess.output import BaseOutput
from dynamod.preprocess.parse import LARGE

from .chat import ChatCompletions
from .endpoint import Frontend

_LONGEST = 8_000_000
"""Characters of a prompt whose tokens are counted."""


class TranslatedChat(ChatCompletions):
    """A chat request that is answered in another form; one object per request."""

    api = ""
    object_arguments = True

    def __init__(self) -> None:  # nothing is read: the chat request is there
        self._outputs: Sequence[BaseOutput] = ()

    def prompts(self, model: Model, request: ChatRequest) -> Sequence[Prepared]:
        """The messages in the model's template. System messages that it refuses become the user's."""
        try:
            return super().prompts(model, request)
        except BadRequest:
            if (softer := without_late_system(request.messages)) is None:
                raise
        return super().prompts(model, msgspec.structs.replace(request, messages=softer))

    async def lower(self, job: Job, served: Served) -> Lowered:
        """As a chat."""
        lowered = await super().lower(job, served)
        self._outputs = lowered.outputs
        return lowered

    async def answer(
        self, frontend: Frontend, context: RequestContext, asked: ChatRequest, card: ModelCard, body: bytes
    ) -> web.StreamResponse:
        """A text engine reads the body, so it gets that of the chat request."""
        if frontend.backend.model(asked.model) is None:
            body = await apart(as_body, asked) if len(body) > LARGE else as_body(asked)
        return await super().answer(frontend, context, asked, card, body)

    def stop_string(self) -> str | None:
        """The stop string that has ended the answer, if one has."""
        return self._outputs[0].stop_string if self._outputs else None


async def count_tokens(model: Model, chat: ChatRequest, large: bool) -> int:
    """Tokens of the prompt; a long one is rendered and tokenised in threads. Raises BadRequest, TooLarge."""
    if chat.tool_choice != "none":  # which tool must be called is not in the prompt
        chat = msgspec.structs.replace(chat, tool_choice=None)
    _check_length(sum([message.length for message in chat.messages]))
    text = await apart(rendered, model, chat) if large else rendered(model, chat)
    _check_length(len(text))
    encode = model.tokenizer.encode
    ids = await asyncio.to_thread(encode, text, False) if model.needs_thread(text) else encode(text, False)
    return len(ids)


def _check_length(characters: int) -> None:
    if characters > _LONGEST:
        raise TooLarge(f"the prompt has more than {_LONGEST} characters", param="messages")


def rendered(model: Model, chat: ChatRequest) -> str:
    """The prompt. Raises BadRequest."""
    try:
        return model.render(chat)
    except BadRequest:
        if (softer := without_late_system(chat.messages)) is None:
            raise
    return model.render(msgspec.structs.replace(chat, messages=softer))


def content_of(texts: Sequence[str]) -> str | list[Part]:
    """Texts as the content of one message."""
    if len(texts) > 1:
        return [Part("text", text) for text in texts]
    return texts[0] if texts else ""


def joined(messages: Sequence[Message]) -> list[Message]:
    """Neighbouring messages of a user become one: templates may refuse two."""
    found: list[Message] = []
    for message in messages:
        if found and message.role == "user" == found[-1].role:
            found[-1] = Message("user", content_of([*_said(found[-1]), *_said(message)]))
        else:
            found.append(message)
    return found


def _said(message: Message) -> list[str]:
    content = message.content
    return [content] if isinstance(content, str) else [part.text or "" for part in content or ()]


def without_late_system(messages: Sequence[Message]) -> list[Message] | None:
    """System messages after the first message as the user's, for templates that refuse them; None: there are none."""
    late = [place for place, message in enumerate(messages) if place and message.role in ("system", "developer")]
    if not late:
        return None
    return joined([Message("user", one.content) if place in late else one for place, one in enumerate(messages)])


def as_body(chat: ChatRequest) -> bytes:
    """A chat request as clients of OpenAI send it, for text engines: without fields that were not sent."""
    found = {name: value for name, value in msgspec.to_builtins(chat).items() if value is not None}
    found["messages"] = [_sent(message) for message in found["messages"]]
    return msgspec.json.encode(found)


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in message.items() if value is not None or name == "content"}
    if isinstance(found["content"], list):
        found["content"] = [{"type": "text", "text": part["text"]} for part in found["content"]]
    for call in found.get("tool_calls", ()):
        del call["index"]
    return found
