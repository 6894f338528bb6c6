"""What passes a connection to NATS: messages that wait, links by address, counts, the message to ourselves."""

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .link import LinkEnd


@dataclass(slots=True)
class Traffic:
    """Messages since the process started. `slow`: dropped by NATS because this process reads too slowly."""

    sent: int = 0
    received: int = 0
    dropped: int = 0
    slow: int = 0


class Queue:
    """Messages that wait for NATS, in order: subject, message, address of the link. `bytes`: of all of them."""

    def __init__(self) -> None:
        self.messages: deque[tuple[str, bytes, str]] = deque()
        self.bytes = 0
        self.wake = asyncio.Event()

    def put(self, subject: str, message: bytes, reply: str) -> None:
        """Add a message; `wake` is not set yet."""
        self.messages.append((subject, message, reply))
        self.bytes += len(message)

    def first(self) -> tuple[str, bytes, str]:
        """Take the oldest message."""
        found = self.messages.popleft()
        self.bytes -= len(found[1])
        return found

    def clear(self) -> int:
        """Drop all messages; returns how many."""
        count = len(self.messages)
        self.messages.clear()
        self.bytes = 0
        return count


class Links:
    """The links of a connection. `ends`: by address. `inbox`: what all addresses begin with."""

    def __init__(self) -> None:
        self.inbox = f"_INBOX.dynamod-{secrets.token_hex(8)}"
        self.ends: dict[str, LinkEnd] = {}
        self._numbers = 0

    def address(self, link: "LinkEnd") -> str:
        """A new address at which `link` receives. Never used twice, so it stands for this link alone."""
        self._numbers += 1
        address = f"{self.inbox}.{self._numbers:x}"
        self.ends[address] = link
        return address

    def release(self, address: str) -> None:
        """No link is at the address any more; a message that still comes there is answered with END."""
        self.ends.pop(address, None)


class Pulse:
    """A message to ourselves, which shows that the server forwards. `mute`: ticks without it.

    `hold`: the timer until messages flow again. `hold_for`: its seconds, more of them when a server forwards nothing:
    another process of that server notices up to a tick later.
    """

    def __init__(self, address: str, hold_for: float) -> None:
        self.address, self.hold_for = address, hold_for
        self.hold: asyncio.TimerHandle | None = None
        self.waiting = False
        self.mute = 0

    def reset(self) -> None:
        """Wait for no message."""
        self.waiting, self.mute = False, 0
