"""Responses that clients may read again, or go on from: in memory, the least used leave first."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from dynamod.message.openai import Message


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as JSON, and the conversation with it, without instructions."""

    body: bytes
    messages: Sequence[Message]

    @property
    def size(self) -> int:
        """About its bytes. Messages that several responses share count for each."""
        return len(self.body) + sum([_size(message) for message in self.messages])


class ResponseStore:
    """At most `limit` bytes; 0: nothing is kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._found: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self.used = 0

    def __len__(self) -> int:
        return len(self._found)

    def put(self, name: str, stored: StoredResponse) -> None:
        """Keep a response, unless it is larger than everything that may be kept."""
        size = stored.size
        if size > self._limit:
            return
        self.remove(name)
        self._found[name], self._sizes[name] = stored, size
        self.used += size
        while self.used > self._limit:
            self.remove(next(iter(self._found)))

    def get(self, name: str) -> StoredResponse | None:
        """A response, which is used by that."""
        stored = self._found.get(name)
        if stored is not None:
            self._found.move_to_end(name)
        return stored

    def remove(self, name: str) -> bool:
        """Keep it no more; whether it was there."""
        if self._found.pop(name, None) is None:
            return False
        self.used -= self._sizes.pop(name)
        return True


def _size(message: Message) -> int:
    calls = sum([len(str(call.function.arguments)) for call in message.tool_calls or ()])
    return message.length + len(message.reasoning_content or "") + calls + 200
