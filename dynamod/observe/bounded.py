"""What the bounded structures of a process hold. Each structure says its bound once, where it is made.

`dynamo doctor memory` shows them, so a structure that grows beyond what it should hold is found by its name.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from dynamod.message.bounded import Bounded

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Bound:
    name: str
    of: str
    bound: int
    unit: str
    count: Callable[[Any], int]


_bounds: "WeakKeyDictionary[Any, list[_Bound]]" = WeakKeyDictionary()


def bounded(owner: T, name: str, bound: int, count: Callable[[T], int], unit: str = "entries", of: str = "") -> None:
    """Have `holdings` tell what `owner` holds, as long as it lives; the other arguments are those of `Bounded`.

    `count` reads the number from the owner, at once and without a change. It must not refer to the owner itself.
    """
    _bounds.setdefault(owner, []).append(_Bound(name, of, bound, unit, count))


def holdings() -> "list[Bounded]":
    """All bounded structures of this process, by name; what cannot be read now is left out."""
    from dynamod.message.bounded import Bounded  # logs begin before msgspec is imported

    found = []
    for owner, bounds in list(_bounds.items()):
        for one in bounds:
            with contextlib.suppress(RuntimeError):  # another thread changes it
                found.append(Bounded(one.name, one.of, one.count(owner), one.bound, one.unit))
    return sorted(found, key=lambda one: (one.name, one.of))
