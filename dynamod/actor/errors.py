"""What can go wrong between actors, and the reasons for which one ends.

ActorError
  + MailboxFull        the bounded mailbox is full (only `send_nowait` raises it)
  + WrongMessage       the actor does not take messages of this type
  + ActorUnreachable   the actor is dead, restarting, draining, or another incarnation than the reference names
  + DeadlineExceeded   an ask's deadline passed; the receiver is interrupted
  + AskCycle           the ask would wait for an actor that already waits for this one
  + RestartLimit       a supervisor saw more crashes than its intensity allows
  + StreamGap          a stream lost items (an offset lies beyond the end of what arrived)
"""

from dataclasses import dataclass


class ActorError(Exception):
    """Base of the kernel's errors."""


class MailboxFull(ActorError):
    """The mailbox is full."""


class WrongMessage(ActorError, TypeError):
    """The actor does not take messages of this type."""


class ActorUnreachable(ActorError):
    """No live actor takes messages under this reference."""


class DeadlineExceeded(ActorError, TimeoutError):
    """The deadline passed before the answer came."""


class AskCycle(ActorError):
    """The actor waits for the asker, directly or through others: the answer would never come."""


class RestartLimit(ActorError):
    """Too many crashes within the supervisor's period."""


class StreamGap(ActorError):
    """Items of a stream are missing."""


@dataclass(frozen=True, slots=True)
class Normal:
    """The actor was stopped, or its work was done."""

    def __str__(self) -> str:
        return "normal"


@dataclass(frozen=True, slots=True)
class Crashed:
    """An exception left the actor."""

    error: BaseException

    def __str__(self) -> str:
        text = str(self.error)
        return f"{type(self.error).__name__}: {text}" if text else type(self.error).__name__


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The actor may live, but cannot be reached: its process stopped answering or its node is cut off."""

    detail: str = ""

    def __str__(self) -> str:
        return f"unreachable: {self.detail}" if self.detail else "unreachable"


Reason = Normal | Crashed | Unreachable
