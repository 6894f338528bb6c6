"""The command of the control socket that `dynamo doctor memory` asks."""

import msgspec

from dynamod.extension.command import Command, NoArguments
from dynamod.message.bounded import Bounded


class ProcessMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A process, and what its bounded structures hold.

    `rss`: bytes in memory; 0 where the kernel does not tell. `pss`: the same with each page divided by the number of
    processes that share the page; null where the kernel does not tell. `descendants`: bytes in memory of the processes
    that the process has started, without the processes of the list. `error`: why the process says nothing of its
    structures.
    """

    process: str = ""
    pid: int = 0
    rss: int = 0
    pss: int | None = None
    descendants: int = 0
    bounded: list[Bounded] = []
    error: str = ""


MEMORY = Command(
    "memory",
    NoArguments,
    list[ProcessMemory],
    "Memory of the daemon and its processes, and what their bounded structures hold.",
)
