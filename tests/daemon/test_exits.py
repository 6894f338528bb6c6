"""How processes have ended, also those that are not our children."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dynamod.daemon.exits import ExitWatch, crash, described, memory_kills
from dynamod.runtime.plan import EXIT_USER_ERROR

GRANDCHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]]); print('over', flush=True)"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("import os; os._exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.abort()", -signal.SIGABRT),
        ("", 0),
    ],
)
async def test_the_exit_code_of_somebody_elses_child(end: str, code: int) -> None:
    """It is None where the kernel keeps none (before 6.15)."""
    program = f"import os; print(os.getpid(), flush=True); input(); {end}"
    words = [sys.executable, "-c", GRANDCHILD, program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        watch = ExitWatch(int(parent.stdout.readline()))
        assert await watch.code(0.02) is None, "it runs"
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
        assert await watch.code(5.0 if release >= (6, 15) else 0.02) in ({code} if release >= (6, 15) else {code, None})
        watch.close()


async def test_a_process_that_nobody_has_waited_for_or_that_is_not_there() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        watch = ExitWatch(child.pid)
        await asyncio.to_thread(os.waitid, os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert await watch.code(0.02) is None
        watch.close()
    gone = ExitWatch(child.pid)
    assert await gone.code(0.02) is None
    gone.close()


@pytest.mark.parametrize(
    ("code", "left", "out_of_memory", "why"),
    [
        (-signal.SIGTERM, False, False, ""),
        (-signal.SIGKILL, False, False, ""),
        (-signal.SIGKILL, False, True, "killed because memory ended"),
        (-signal.SIGTERM, False, True, ""),
        (-signal.SIGSEGV, False, False, "killed by SIGSEGV"),
        (0, True, False, ""),
        (0, False, False, "exit code 0"),
        (3, True, False, "exit code 3"),
        (EXIT_USER_ERROR, False, False, ""),
    ],
)
def test_what_is_a_crash(code: int, left: bool, out_of_memory: bool, why: str) -> None:
    assert crash(code, left=left, out_of_memory=out_of_memory) == why


def test_a_signal_is_told_with_the_phase_of_the_start_in_which_it_came() -> None:
    told = [described(code, phase) for code in (-signal.SIGSEGV, 3) for phase in ("", "warm-up")]
    assert told == ["killed by SIGSEGV", "killed by SIGSEGV during warm-up", "exit code 3", "exit code 3"]


def test_kills_for_memory_are_those_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 5\noom_kill 3\noom_group_kill 0\n")
    monkeypatch.setattr("dynamod.daemon.exits._group_file", lambda: tmp_path / "memory.events")
    assert memory_kills() == 3
    monkeypatch.setattr("dynamod.daemon.exits._group_file", lambda: tmp_path / "nothing")
    assert memory_kills() >= 0, "of the whole machine"
