"""CPU time and memory of processes, from the kernel."""

import os
import time
from pathlib import Path

from dynamod.observe.vitals import Vitals, vitals


def test_our_own() -> None:
    mine = str(os.getpid())
    before = vitals([os.getpid()])[mine]
    assert before.rss > 1 << 20
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert 0.02 <= vitals([os.getpid()])[mine].cpu - before.cpu < 5


def test_who_is_gone_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = ["S", *["0"] * 10, "150", "50", *["0"] * 8, "3", "0"]
    (tmp_path / "7/stat").write_text(f"7 (odd ) name) {' '.join(fields)}\n")
    (tmp_path / "8").mkdir()
    (tmp_path / "8/stat").write_text("8 (torn")
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert vitals([7, 8, 9], tmp_path) == {"7": Vitals(200 / tick, 3 * page)}
