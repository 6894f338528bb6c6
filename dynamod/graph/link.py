"""Where `A.link(B)` is written down.

A link belongs to the load in progress, not to the classes: the same component classes serve many graphs, and two
graphs loaded by one process must not see each other's links. `collecting()` opens a fresh book for the block;
outside one, links go to a book of the process, which `build_graph` reads for services made by hand.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynamod.graph.service import Service


class LinkedServices:
    """Edges in the order they were made, each once."""

    def __init__(self) -> None:
        self.edges: list[tuple[Service[Any], Service[Any]]] = []

    def add(self, source: "Service[Any]", target: "Service[Any]") -> None:
        """Record `source.link(target)`."""
        if not any(edge[0] is source and edge[1] is target for edge in self.edges):
            self.edges.append((source, target))

    def clear(self) -> None:
        """Forget all edges."""
        self.edges.clear()


PROCESS_LINKS = LinkedServices()
"""Links made outside any load."""

_current: ContextVar[LinkedServices | None] = ContextVar("dynamod_links", default=None)


def current_links() -> LinkedServices:
    """The book in which a link made now is written."""
    book = _current.get()
    return PROCESS_LINKS if book is None else book


@contextmanager
def collecting() -> Iterator[LinkedServices]:
    """Links made inside the block go to the book it yields, and nowhere else."""
    book = LinkedServices()
    token = _current.set(book)
    try:
        yield book
    finally:
        _current.reset(token)
