"""What features have all nodes agree in."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dynamod.daemon.node import Node


class Fact(NamedTuple):
    """What another feature adds to the comparison of nodes. `of`: the text for a node. `severe`: requests suffer.

    `what`: says that nodes differ; `mend`: what to do then.
    """

    name: str
    of: "Callable[[Node], str]"
    severe: bool
    what: str
    mend: str
