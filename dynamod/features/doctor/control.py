"""What answers `memory` in the daemon."""

import asyncio
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dynamod.extension.command import CommandHandler, NoArguments
from dynamod.message.bounded import Bounded
from dynamod.observe.memory import proportional
from dynamod.observe.processes import PROC, family
from dynamod.observe.vitals import Vitals, vitals

from .commands import MEMORY, ProcessMemory

if TYPE_CHECKING:
    from dynamod.control.context import CommandContext


async def memory(context: "CommandContext", _arguments: NoArguments) -> list[ProcessMemory]:
    """Memory of the daemon and its processes, and what their bounded structures hold."""
    from dynamod.control.reading import OWN
    from dynamod.runtime.statistics import bounded_structures

    processes = context.names.processes()
    answers = await context.ask_each(processes, "bounded")
    pids = {OWN: os.getpid(), **{process.name: process.pid for process in processes}}
    listed = {*pids.values()}
    taken = await asyncio.to_thread(lambda: [memory_of(name, pid, listed) for name, pid in pids.items() if pid])
    told: dict[str, Any] = {process.name: answer for process, answer in answers.items()}
    told[OWN] = bounded_structures(context.node.system)
    return [_with_bounded(one, told[one.process]) for one in taken]


def memory_of(process: str, pid: int, listed: Collection[int], proc: Path = PROC) -> ProcessMemory:
    """The memory of a process.

    `listed`: pids of processes that have their own rows. Their families are no descendants here.
    """
    pids = {*family(pid, proc)}
    theirs = {one for other in listed if other != pid and other in pids for one in family(other, proc)}
    found = vitals(pids - theirs, proc)
    own = found.pop(str(pid), Vitals())
    return ProcessMemory(
        process=process,
        pid=pid,
        rss=own.rss,
        pss=proportional(pid, proc),
        descendants=sum(one.rss for one in found.values()),
    )


def _with_bounded(memory: ProcessMemory, answer: Any) -> ProcessMemory:
    """The memory of a process, with its answer or why there is none."""
    if isinstance(answer, BaseException):  # a finding, not a failure
        return replace(memory, error=f"does not answer: {str(answer) or type(answer).__name__}")
    return replace(memory, bounded=msgspec.convert(answer, list[Bounded]))


HANDLERS = (CommandHandler(MEMORY, memory),)
