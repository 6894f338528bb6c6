"""Responses that clients may read again, or go on from: in memory, the least used leave first."""

from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec

from dynamod.http.settings import FrontendSettings
from dynamod.ingress.api.endpoint import Frontend
from dynamod.message.openai import Message

from .messages import InputItem
from .settings import ResponsesSettings

_ITEM = 200
"""About the bytes of an item, without its texts."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as JSON, and the conversation with it, without instructions.

    `items`: the same conversation up to it, as clients send it. `answer`: its own.
    """

    body: bytes
    messages: tuple[Message, ...]
    items: tuple[InputItem, ...] = ()
    answer: tuple[InputItem, ...] = ()

    @property
    def size(self) -> int:
        """About its bytes. What several responses share counts for each. Items and messages share contents."""
        items = sum([_size_of_item(item) for item in (*self.items, *self.answer)])
        return len(self.body) + items + sum([_size(message) for message in self.messages])


class KeptResponses(Protocol):
    """Where responses are kept: in memory here, or in a file (`shared`)."""

    def put(self, name: str, stored: StoredResponse) -> "Future[None] | None":
        """Keep a response, unless it is larger than everything that may be kept.

        The result ends when that is done; None: it is done.
        """
        ...

    async def get(self, name: str) -> StoredResponse | None:
        """A response, which is used by that. Raises Overloaded."""
        ...

    async def item(self, name: str) -> InputItem | None:
        """An item of an answer. Raises Overloaded."""
        ...

    async def remove(self, name: str) -> bool:
        """Keep it no more; whether it was there. Raises Overloaded."""
        ...


class ResponseStore:
    """At most `limit` bytes; 0: nothing is kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._found: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._items: dict[str, InputItem] = {}  # of answers, by their ids
        self.used = 0

    def __len__(self) -> int:
        return len(self._found)

    def put(self, name: str, stored: StoredResponse) -> None:
        """Keep a response, unless it is larger than everything that may be kept."""
        size = stored.size
        if size > self._limit:
            return
        self._remove(name)
        self._found[name], self._sizes[name] = stored, size
        self._items.update({item.id: item for item in stored.answer if item.id})
        self.used += size
        while self.used > self._limit:
            self._remove(next(iter(self._found)))

    async def get(self, name: str) -> StoredResponse | None:
        """A response, which is used by that."""
        stored = self._found.get(name)
        if stored is not None:
            self._found.move_to_end(name)
        return stored

    async def item(self, name: str) -> InputItem | None:
        """An item of an answer."""
        return self._items.get(name)

    async def remove(self, name: str) -> bool:
        """Keep it no more; whether it was there."""
        return self._remove(name)

    def _remove(self, name: str) -> bool:
        if (stored := self._found.pop(name, None)) is None:
            return False
        for item in stored.answer:
            self._items.pop(item.id or "", None)
        self.used -= self._sizes.pop(name)
        return True


def _size(message: Message) -> int:
    calls = sum([len(str(call.function.arguments)) for call in message.tool_calls or ()])
    return message.length + len(message.reasoning_content or "") + calls + 200


def _size_of_item(item: InputItem) -> int:
    """Without what the messages have. Reasoning of another server is in none of them."""
    words = (item.id, item.call_id, item.name, item.status, item.encrypted_content)
    summary = sum([len(part.text or "") + _ITEM for part in item.summary or ()])
    return _ITEM + summary + sum([len(word) for word in words if word])


def open_store(settings: FrontendSettings) -> KeptResponses:
    """Where a frontend keeps responses. Raises UserError when its folder cannot be used."""
    own = msgspec.convert(settings, ResponsesSettings, from_attributes=True)
    if not own.responses_dir:
        return ResponseStore(own.limit)
    from .shared import SharedResponses  # needs sqlite

    return SharedResponses(own.responses_dir, own.limit)


def kept_by(frontend: Frontend) -> KeptResponses:
    """Where this frontend keeps responses."""
    return cast(KeptResponses, frontend.parts["responses"])
