"""The command `memory`, which this feature adds to those of the daemon."""

import os
from pathlib import Path
from typing import Any

import pytest

from dynamod.actor import System
from dynamod.features.doctor.commands import ProcessMemory
from dynamod.features.doctor.control import memory_of

from ...control.test_answers import test_an_answer_has_these_fields as has_fields
from ...control.test_commands import Process, asked

HELD = {"name": "router index", "of": "m", "count": 3, "bound": 4, "unit": "blocks"}
MEMORY = {"process": "agg/Worker.0", "pid": 7, "rss": 8, "pss": 4, "descendants": 0, "bounded": [HELD], "error": ""}


@pytest.mark.parametrize("value", [MEMORY, {**MEMORY, "pss": None, "bounded": [], "error": "does not answer: x"}])
def test_an_answer_has_the_fields(value: dict[str, Any]) -> None:
    has_fields(ProcessMemory, value)


async def test_memory_of_the_daemon_and_of_processes_that_answer_or_not() -> None:
    held = {"name": "kept decisions", "count": 3, "bound": 1000, "unit": "requests", "later": True}
    pid = os.getppid()  # the kernel tells its memory
    processes = Process("agg/ingress.0", pid, bounded=[held]), Process("agg/Worker.0", pid), Process("agg/Worker.1")
    async with System(seed=1) as system:
        daemon, ingress, quiet = await asked(system, *processes).call("memory", {})  # one has not started
    assert (daemon["process"], daemon["pid"], daemon["error"]) == ("dynamod", os.getpid(), "")
    assert "mailbox" in {one["name"] for one in daemon["bounded"]}
    assert min(daemon["rss"], ingress["rss"]) > 1 << 20
    assert ingress["bounded"] == [{"name": "kept decisions", "of": "", "count": 3, "bound": 1000, "unit": "requests"}]
    assert (quiet["process"], quiet["bounded"]) == ("agg/Worker.0", [])
    assert quiet["error"] == "does not answer: TimeoutError"


def made(proc: Path, pid: int, pages: int, *children: int) -> None:
    """A process in a folder like /proc."""
    task = proc / f"{pid}/task/{pid}"
    task.mkdir(parents=True)
    (task / "children").write_text(" ".join(map(str, children)))
    fields = ["S", *["0"] * 20, str(pages), "0"]
    (proc / f"{pid}/stat").write_text(f"{pid} (python) {' '.join(fields)}\n")


def test_memory_of_a_process_and_of_descendants_without_rows(tmp_path: Path) -> None:
    """The file 1 has started the daemon 2 and an engine 5; the daemon has started the worker 3, with an engine 4."""
    for pid, pages, *children in ((1, 10, 2, 5), (2, 20, 3), (3, 30, 4), (4, 40), (5, 50)):
        made(tmp_path, pid, pages, *children)
    (tmp_path / "3/smaps_rollup").write_text("0-f ---p 0 00:00 0 [rollup]\nRss: 120 kB\nPss: 25 kB\nPss_Dirty: 1 kB\n")
    page = os.sysconf("SC_PAGE_SIZE")
    found = {pid: memory_of(str(pid), pid, {1, 2, 3}, tmp_path) for pid in (1, 2, 3)}
    assert {pid: (one.rss // page, one.descendants // page) for pid, one in found.items()} == {
        1: (10, 50),
        2: (20, 0),
        3: (30, 40),
    }
    assert [found[pid].pss for pid in (1, 2, 3)] == [None, None, 25 * 1024]
    gone = memory_of("gone", 9, {9}, tmp_path)
    assert (gone.process, gone.rss, gone.pss, gone.descendants) == ("gone", 0, None, 0)
