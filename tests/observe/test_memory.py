"""What processes take, by the kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dynamod.observe.memory import proportional, replacing, resident, returned, size

MB = 1_000_000
HOLDS = f"data = b'x' * {{}} * {MB}; print(flush=True); input()"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_and_its_descendants() -> None:
    inner = [sys.executable, "-c", HOLDS.format(80)]
    outer = f"import subprocess; data = b'x' * 40 * {MB}; subprocess.run({inner!r})"
    with subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert 120 * MB < resident(process.pid) < 220 * MB
        assert 120 * MB < resident(process.pid, own=True) < resident(process.pid)
        assert returned() == 0
        with replacing([process.pid, process.pid]):
            assert 120 * MB < returned() < 220 * MB
        assert returned() == 0
        process.communicate(b"\n", timeout=20)
    assert resident(process.pid) == 0


def test_a_page_counts_by_its_processes(tmp_path: Path) -> None:
    if (pss := proportional(os.getpid())) is not None:  # a kernel may not tell
        assert MB < pss <= resident(os.getpid())
    (tmp_path / "7").mkdir()
    assert proportional(7, tmp_path) is None
    for text, number in (("0-1 ---p [rollup]\nRss: 9 kB\nPss:       4 kB\n", 4096), ("torn", None), ("Pss:", None)):
        (tmp_path / "7/smaps_rollup").write_text(text)
        assert proportional(7, tmp_path) == number


@pytest.mark.parametrize(("text", "number"), [("1k", 1000), ("1KiB", 1024), ("4.5 GB", 4_500_000_000), ("12", 12)])
def test_sizes(text: str, number: int) -> None:
    assert size(text) == number


@pytest.mark.parametrize("text", ["", "much", "1 iB", "-1", "2XB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        size(text)
