"""CPU time and memory of processes, from the kernel."""

import os
import time
from pathlib import Path

from dynamod.control.answers import Vitals
from dynamod.control.vitals import memory, vitals


def test_our_own() -> None:
    mine = str(os.getpid())
    before = vitals([os.getpid()])[mine]
    assert before.rss > 1 << 20
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert 0.02 <= vitals([os.getpid()])[mine].cpu - before.cpu < 5


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
    found = {pid: memory(str(pid), pid, {1, 2, 3}, tmp_path) for pid in (1, 2, 3)}
    assert {pid: (one.rss // page, one.descendants // page) for pid, one in found.items()} == {
        1: (10, 50),
        2: (20, 0),
        3: (30, 40),
    }
    assert [found[pid].pss for pid in (1, 2, 3)] == [None, None, 25 * 1024]
    gone = memory("gone", 9, {9}, tmp_path)
    assert (gone.process, gone.rss, gone.pss, gone.descendants) == ("gone", 0, None, 0)


def test_who_is_gone_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = ["S", *["0"] * 10, "150", "50", *["0"] * 8, "3", "0"]
    (tmp_path / "7/stat").write_text(f"7 (odd ) name) {' '.join(fields)}\n")
    (tmp_path / "8").mkdir()
    (tmp_path / "8/stat").write_text("8 (torn")
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert vitals([7, 8, 9], tmp_path) == {"7": Vitals(200 / tick, 3 * page)}
