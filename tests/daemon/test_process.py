"""A component process that is stopped takes along what it has started."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dynamod.actor import Normal
from dynamod.daemon.changes import Changes
from dynamod.daemon.process import Launch, Process, ProcessRecord
from dynamod.daemon.spawn import Child, Origin
from dynamod.runtime.liveness import Clocks
from dynamod.runtime.plan import HostPlan

CHILD = """
import subprocess, sys, time
one = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"])
print(one.pid, flush=True)
{then}
"""
"""Starts a process of its own, which does not end by SIGTERM, and writes its number."""

DEAF = "import signal; signal.signal(15, signal.SIG_IGN); time.sleep(60)"


class Started:
    """A child as `spawn.Child` has it, with another program."""

    def __init__(self, then: str) -> None:
        program = [sys.executable, "-c", CHILD.format(then=then)]
        self.popen = subprocess.Popen(program, stdout=subprocess.PIPE, start_new_session=True)
        self.pid = self.popen.pid
        assert self.popen.stdout is not None
        with self.popen.stdout as out:
            self.grandchild = int(out.readline())

    @property
    def returncode(self) -> int | None:
        return self.popen.poll()

    async def wait(self) -> int:
        return await asyncio.to_thread(self.popen.wait)


class Node:
    def __init__(self) -> None:
        self.changes = Changes()


def stopped(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def gone(pid: int) -> bool:
    """Whether a process is gone within a few seconds."""
    for _ in range(200):
        if stopped(pid):
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("then", "grace"),
    [
        pytest.param("time.sleep(60)", 3.0, id="ends by SIGTERM"),
        pytest.param(DEAF, 0.3, id="does not"),
        pytest.param("sys.exit(3)", 3.0, id="has crashed"),
    ],
)
async def test_what_a_process_has_started_ends_with_it(
    then: str, grace: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessRecord, "to_stop", grace)
    child = Started(then)
    try:
        plan = HostPlan("g", "g/p.0", 0, (), "")
        record = ProcessRecord("p", child.pid)
        process = Process(cast("Any", Node()), Launch(plan, Origin(), {}), record)
        process._child = cast("Child", child)
        if then.startswith("sys.exit"):
            child.popen.wait()
        waited = asyncio.ensure_future(child.wait())
        waited.add_done_callback(lambda _: process._ended.set())
        assert not stopped(child.grandchild)
        await process.stopping(Normal())
        await waited
        assert record.ended
        assert await gone(child.grandchild)
    finally:
        for pid in (child.grandchild, child.pid):
            if not stopped(pid):
                os.kill(pid, signal.SIGKILL)
        child.popen.wait()


async def test_a_stopped_process_that_has_lost_its_connection_is_killed() -> None:
    child = Started("time.sleep(60)")
    try:
        os.kill(child.pid, signal.SIGSTOP)
        record, plan = ProcessRecord("p", child.pid), HostPlan("g", "g/p.0", 0, (), "")
        clocks = Clocks(kill=0.3)
        process = Process(cast("Any", Node()), Launch(plan, Origin(), {}, clocks=clocks), record)
        process._child = cast("Child", child)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            context = SimpleNamespace(cell=SimpleNamespace(alive=True), task=lambda work, _: group.create_task(work))
            process.context = cast("Any", context)
            process._disconnected()
            await child.wait()
            process._exited.set()
        assert child.returncode == -signal.SIGKILL
        assert "without a connection" in process._killed
        assert await gone(child.grandchild)
    finally:
        for pid in (child.grandchild, child.pid):
            if not stopped(pid):
                os.kill(pid, signal.SIGKILL)
        child.popen.wait()
