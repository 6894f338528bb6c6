"""What the kernel counts of actors and mailboxes, and how statistics structs tell counters from gauges."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Total = Annotated[int, Meta(extra={"metric": "counter"})]
"""A field of a statistics struct that only grows while the process lives: a counter, all other numbers are gauges."""
ActorState = Literal["Starting", "Ready", "Draining", "Stopped"]


class MailboxStatistics(msgspec.Struct, frozen=True):
    """Depths now, the bound, how many senders wait, and how many messages have been read."""

    depth: Annotated[int, Meta(description="Messages that wait in the mailbox.")]
    control_depth: Annotated[int, Meta(description="Control messages that wait in the mailbox.")]
    capacity: Annotated[int, Meta(description="Messages that the mailbox can hold.")]
    waiting_senders: Annotated[int, Meta(description="Senders that wait for room in the mailbox.")]
    taken: Annotated[Total, Meta(description="Messages that were taken out of the mailbox.")]


class ActorStatistics(msgspec.Struct, frozen=True):
    """What every actor answers. Ages in seconds."""

    path: str
    incarnation: Annotated[int, Meta(description="How often the actor has been started, this time included.")]
    kind: str
    state: ActorState
    mailbox: MailboxStatistics
    handled: Annotated[Total, Meta(description="Messages that the actor has handled.")]
    abandoned: Annotated[Total, Meta(description="Messages whose handler was given up at its deadline.")]
    current: str | None
    current_age: Annotated[
        float | None, Meta(description="Age of the message that the actor handles now.", extra={"unit": "seconds"})
    ]
    tasks: Annotated[int, Meta(description="Tasks that the actor runs alongside its handler.")]
    age: Annotated[float, Meta(description="Time since the actor was started.", extra={"unit": "seconds"})]


class ChildStatistics(msgspec.Struct, frozen=True):
    """A child as its supervisor knows it. `state` adds Restarting and Fatal to the actor's own states."""

    name: str
    path: str
    state: str
    incarnation: Annotated[int, Meta(description="How often the child has been started, this time included.")]
    restarts: Annotated[Total, Meta(description="Restarts of the child.")]
    last_error: str


class SystemStatistics(msgspec.Struct, frozen=True):
    """Live actors; messages that no actor read, by type; sends refused by full mailboxes."""

    actors: Annotated[int, Meta(description="Live actors of the process.")]
    dead_letters: dict[str, int]
    full: Annotated[Total, Meta(description="Messages that a full mailbox refused.")]
