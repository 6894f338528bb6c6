"""What an engine's processes print, and the reason in it."""

import subprocess
import sys
from pathlib import Path

import pytest

from dynamod.engine.adapter.output import one_line, reason

TOO_SMALL = "To serve at least one request with the model's max seq len (2048), 0.5 GiB KV cache is needed"
PRINTED = f"""\
INFO 11-22 10:12:38 [x.py:1] ImportError: of an optional package
(EngineCore pid=12) ERROR 11-22 10:12:39 [core.py:1510] EngineCore failed to start.
(EngineCore pid=12) ERROR 11-22 10:12:39 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=12) ERROR 11-22 10:12:39 [core.py:1510]   File "core.py", line 1
(EngineCore pid=12) ERROR 11-22 10:12:39 [core.py:1510] ValueError: {TOO_SMALL}
(EngineCore pid=12) ERROR 11-22 10:12:39 [core.py:1510] Exception: WorkerProc initialization failed due to an exception
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore': 1}}
"""
PROGRAM = """
import os, subprocess, sys, time
from dynamod.engine.adapter.output import StartOutput
output = StartOutput()
print("ours", flush=True)
late = "import time; print('theirs', flush=True); time.sleep(0.5); print('late')"
child = subprocess.Popen([sys.executable, "-c", late])
while "theirs" not in output.lines:
    time.sleep(0.01)
output.close()
print("after", flush=True)
child.wait()
while "late" not in output.lines:
    time.sleep(0.01)
assert "after" not in output.lines
"""


NOTES = """
import sys
from dynamod.engine.adapter.output import StartOutput
output = StartOutput(notes=NOTES)
for line in (
    "WARNING 11-24 16:00:01 [cpu.py:12] no such thing",
    "(EngineCore pid=12) INFO 11-24 16:00:01 [core.py:1] note",
    "[transformers] WARNING of it",
    "/lib/x.py:12: FutureWarning: old",
    "ERROR 11-24 16:00:01 [core.py:3] fails",
    "\x1e{marked WARNING",
    "plain",
):
    print(line, flush=True)
while "plain" not in output.lines:
    pass
output.close()
print("WARNING after", flush=True)
"""


@pytest.mark.parametrize("notes", [False, True])
def test_notes_of_the_start_are_kept_back(notes: bool) -> None:
    code = NOTES.replace("=NOTES", f"={notes}")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    printed = (done.stdout + done.stderr).splitlines()
    assert [line.split()[0] for line in printed if "ERROR" in line or "\x1e" in line or "plain" in line]
    assert sorted(line for line in printed if "WARNING 1" in line or "INFO" in line or "Future" in line) == sorted(
        [
            "WARNING 11-24 16:00:01 [cpu.py:12] no such thing",
            "(EngineCore pid=12) INFO 11-24 16:00:01 [core.py:1] note",
            "/lib/x.py:12: FutureWarning: old",
        ]
        if notes
        else []
    )
    assert {"ERROR 11-24 16:00:01 [core.py:3] fails", "plain", "WARNING after"} <= {*printed}


def test_the_reason_is_the_error_that_does_not_refer_to_another() -> None:
    assert reason(PRINTED.splitlines()) == f"ValueError: {TOO_SMALL}"
    assert reason(["torch.OutOfMemoryError: CUDA out of memory."]) == "OutOfMemoryError: CUDA out of memory."
    assert reason(["nothing", "Error", ""]) == ""


def test_an_exception_in_one_line() -> None:
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(KeyError()) == "KeyError"


def test_output_passes_through_while_it_is_kept(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "after\n"
    assert done.stderr.splitlines() == ["ours", "theirs", "late"]


@pytest.mark.parametrize("number", [9, 15])
def test_shared_memory_goes_with_the_processes_that_made_it(number: int) -> None:
    program = f"""
import os
from multiprocessing.shared_memory import SharedMemory
from dynamod.engine.adapter.tracker import keep_tracker_apart
keep_tracker_apart()
print(SharedMemory(create=True, size=64).name, flush=True)
os.killpg(os.getpgrp(), {number})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, start_new_session=True)
    assert done.returncode == -number
    left = Path("/dev/shm", done.stdout.strip())
    for _ in range(1000):
        if not left.exists():
            return
        subprocess.run(["sleep", "0.01"], check=True)
    raise AssertionError(f"{left} is left")
