"""The base class of actors, and the decorators that make a method the receiver of a message type."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Union, get_args, get_origin

import msgspec

from .errors import Reason

if TYPE_CHECKING:
    from .cell import Context

F = TypeVar("F", bound=Callable[..., Any])


def handle(method: F) -> F:
    """Mark a method `async def name(self, message: SomeType)` as the receiver of messages of that type (or union).

    What it returns is the reply to an `ask`; returning an exception makes the ask raise it, which is how an expected
    failure is answered. A future that it returns is the reply later: the actor continues, and the future is cancelled
    when the asker leaves. Raising crashes the actor.

    A receiver that never awaits may be a plain `def`. An actor that waits for messages, and has none, handles an `ask`
    with such a message in the asker's turn of the event loop: without a switch of tasks, still one at a time.
    """
    method.__actor_lane__ = "messages"  # type: ignore[attr-defined]
    return method


def control(method: F) -> F:
    """Like `handle`, for messages that travel in the control lane: read before all others, never refused as full."""
    method.__actor_lane__ = "control"  # type: ignore[attr-defined]
    return method


def _message_types(method: Callable[..., Any]) -> tuple[type, ...]:
    hints = typing.get_type_hints(method)
    names = [name for name in hints if name != "return"]
    if not names:
        raise TypeError(f"{method.__qualname__}: annotate the message argument with its type")
    annotation = hints[names[0]]
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    kinds = tuple(get_origin(part) or part for part in parts)
    if wrong := [kind for kind in kinds if not isinstance(kind, type) or kind in (Any, object)]:
        raise TypeError(f"{method.__qualname__}: {wrong[0]} is no message type, name the classes that it takes")
    return kinds


class Actor:
    """State, a mailbox and one task. Subclass it, mark receivers with `@handle`, keep all else private.

    Life: `started` -> Ready, one message at a time -> (Draining) -> `stopping`. An actor handles one message after
    another; what must continue in addition to that is a helper task (`self.context.task`) which ends with the actor,
    and whose exception crashes it.
    """

    mailbox_capacity: ClassVar[int] = 64
    receivers: ClassVar[Mapping[type, Callable[..., Any]]] = {}
    control_types: ClassVar[frozenset[type]] = frozenset()
    immediate: ClassVar[frozenset[type]] = frozenset()
    """Messages whose receivers never await."""

    context: "Context"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        table = dict(cls.receivers)
        lanes = set(cls.control_types)
        for method in vars(cls).values():
            lane = getattr(method, "__actor_lane__", None)
            if lane is None:
                continue
            for kind in _message_types(method):
                table[kind] = method
                (lanes.add if lane == "control" else lanes.discard)(kind)
        cls.receivers = types.MappingProxyType(table)
        cls.control_types = frozenset(lanes)
        cls.immediate = frozenset(one for one, method in table.items() if not inspect.iscoroutinefunction(method))

    async def started(self) -> None:
        """Runs before the first message; the actor is Ready when it returns. An exception counts as a crash."""

    async def drained(self) -> None:
        """Runs when the actor drains, after its last message: return when work alongside the mailbox is done."""

    async def stopping(self, reason: Reason) -> None:
        """Runs once at the end whatever the reason, within the shutdown timeout. Free what `started` took."""

    def statistics(self) -> msgspec.Struct | None:
        """What the actor counts in addition to the kernel, None if nothing. Fields of type `Total` only grow."""
        return None

    def inspection(self) -> dict[str, Any]:
        """What `inspect` shows in addition to the kernel's own facts. Must not block, must not contain payloads."""
        return {}
