"""How processes have ended that are not our children."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from dynamod.daemon.exits import ExitWatch

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
