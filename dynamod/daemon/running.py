"""A process group that runs: its socket, its replicas, and what their processes are called."""

import asyncio
import socket
from dataclasses import dataclass, field

from .groups import Group


@dataclass(slots=True)
class Running:
    """`replicas`: index -> devices. `lock`: one change at a time.

    Users call a process `Frontend.0`. While a successor starts and its predecessor still has streams there are two of
    them, which the supervisor must know apart: `children` has the name of the process that is the replica (when it is
    another one), `others` the processes on their way in or out, with the replica they belong to.
    """

    group: Group
    sock: socket.socket | None
    replicas: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    children: dict[int, str] = field(default_factory=dict[int, str])
    others: dict[str, int] = field(default_factory=dict[str, int])

    def name(self, index: int) -> str:
        """What users call a replica: `Worker.0`."""
        return f"{self.group.name}.{index}"

    def child(self, index: int) -> str:
        """The supervisor's name of the process that is a replica."""
        return self.children.get(index, self.name(index))

    def indexes(self, component: str) -> list[int]:
        """The replicas that `Worker` or `Worker.1` means."""
        number = component.rpartition("/")[2].partition(".")[2]
        return [index for index in sorted(self.replicas) if number in ("", str(index))]

    @property
    def overlaps(self) -> bool:
        """Whether a successor can start while its predecessor still serves: both hold the socket, neither a device."""
        return self.sock is not None and not self.group.gpus
