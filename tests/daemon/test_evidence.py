"""What the kernel shows of real processes that compute, read, are stopped, or wait for a lock."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dynamod.daemon.evidence import Evidence, sample
from dynamod.observe.processes import family

Run = Callable[..., subprocess.Popen[bytes]]

# A loop in C that holds the interpreter's lock: no other thread of the process runs meanwhile.
HOLDS_THE_LOCK = "max(__import__('itertools').repeat(1))"
NEVER_OPENS = "import threading; lock = threading.Lock(); lock.acquire(); print('x', flush=True); lock.acquire()"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOLDS_THE_LOCK!r}])"


@pytest.fixture
def run() -> Iterator[Run]:
    """`run(code)`: a Python process in a session of its own; killed with its children at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str, **more: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **more)  # type: ignore[call-overload]
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def looked_at(pid: int, seconds: float, until: Callable[[Evidence], bool] = lambda _: False) -> Evidence:
    evidence = Evidence(pid)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until(evidence):
        evidence.look(time.monotonic(), 0.3)
        time.sleep(0.05)
    return evidence


@pytest.mark.parametrize("code", [HOLDS_THE_LOCK, CHILD], ids=["itself", "its child"])
def test_a_process_that_computes_without_a_word(run: Run, code: str) -> None:
    assert looked_at(run(code).pid, 20.0, lambda seen: seen.worked is not None).worked is not None


def test_a_stopped_process_and_one_at_a_lock_do_not_work(run: Run) -> None:
    loop, lock = run(HOLDS_THE_LOCK), run(NEVER_OPENS, stdout=subprocess.PIPE)
    assert lock.stdout is not None
    assert lock.stdout.readline() == b"x\n"
    lock.stdout.close()
    loop.send_signal(signal.SIGSTOP)
    while "\nState:\tT" not in Path(f"/proc/{loop.pid}/status").read_text():
        time.sleep(0.01)
    for process in (loop, lock):
        assert looked_at(process.pid, 1.0).worked is None
    loop.send_signal(signal.SIGCONT)
    assert looked_at(loop.pid, 20.0, lambda seen: seen.worked is not None).worked is not None


def test_a_process_that_has_ended_or_is_none_does_not_work(run: Run) -> None:
    process = run("pass")
    process.wait()
    assert looked_at(process.pid, 0.5).worked is None
    assert looked_at(0, 0.2).last is None


def proc(folder: Path, pid: int, *, ticks: int = 0, faults: int = 0, waited: int = 0, read: int = 0) -> None:
    """What the kernel would show of a process with one thread."""
    task = folder / str(pid) / "task" / str(pid)
    task.mkdir(parents=True, exist_ok=True)
    fields = ["S", *"0" * 8, str(faults), "0", str(ticks), *"0" * 12]
    (folder / str(pid) / "stat").write_text(f"{pid} (a name) with) {' '.join(fields)}")
    (folder / str(pid) / "io").write_text(f"rchar: 1\nread_bytes: {read}\n")
    (task / "schedstat").write_text(f"0 {waited} 1\n")


def test_each_kind_of_work_counts_from_a_twentieth_of_a_core_on(tmp_path: Path) -> None:
    evidence = Evidence(7, tmp_path)
    proc(tmp_path, 7)
    evidence.look(10.0)
    proc(tmp_path, 7, ticks=2)
    evidence.look(10.5)
    assert evidence.worked is None, "2 ticks of 10 ms in half a second: heartbeats"
    proc(tmp_path, 7, ticks=5)
    evidence.look(11.0)
    assert (evidence.worked, evidence.read) == (11.0, None)
    proc(tmp_path, 7, ticks=5, waited=400_000_000)
    evidence.look(11.5)
    assert (evidence.worked, evidence.read) == (11.5, None), "it waited for a core"
    proc(tmp_path, 7, ticks=5, waited=400_000_000, read=4096)
    evidence.look(12.0)
    assert (evidence.worked, evidence.read) == (12.0, 12.0)
    proc(tmp_path, 7, ticks=5, waited=400_000_000, read=4096, faults=1)
    evidence.look(12.5)
    assert (evidence.worked, evidence.read) == (12.5, 12.5)
    evidence.look(13.0)
    assert (evidence.worked, evidence.read) == (12.5, 12.5)


def test_looks_come_at_their_interval_and_begin_anew_after_progress(tmp_path: Path) -> None:
    evidence = Evidence(7, tmp_path)
    proc(tmp_path, 7)
    evidence.look(10.0)
    proc(tmp_path, 7, ticks=90)
    evidence.look(10.2)
    assert evidence.worked is None, "too early for a second look"
    evidence.forget()
    evidence.look(11.0)
    assert evidence.worked is None, "the first look after progress compares with nothing"


def test_a_process_without_files_in_proc_shows_nothing(tmp_path: Path) -> None:
    assert sample(7, 1.0, tmp_path).cpu == {}


def test_this_process_is_not_counted_to_its_parent() -> None:
    assert os.getpid() in family(os.getppid())
    assert os.getpid() not in family(os.getppid(), without=os.getpid())
    assert os.getpid() not in sample(os.getppid(), 1.0).cpu
