"""Where `A.link(B)` is recorded.

A link belongs to the load in progress, not to the classes: the same component classes serve many graphs, and two
graphs loaded by one process must not see each other's links. Outside a load a link has no effect: a child process
imports the graph file for its classes alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynamod.graph.service import Service

Links = list[tuple["Service[Any]", "Service[Any]"]]
"""Edges in the order in which they were made, each once."""

_current: ContextVar[Links | None] = ContextVar("dynamod_links", default=None)


def add_link(source: "Service[Any]", target: "Service[Any]") -> None:
    """Record `source.link(target)` in the load in progress."""
    links = _current.get()
    if links is not None and not any(a is source and b is target for a, b in links):
        links.append((source, target))


@contextmanager
def collecting() -> Iterator[Links]:
    """Links made inside the block go to the list that it yields, and nowhere else."""
    links: Links = []
    token = _current.set(links)
    try:
        yield links
    finally:
        _current.reset(token)
