"""How a child process ended: on purpose, or by a crash that one of its requests may have caused."""

import os
import signal
from pathlib import Path

from dynamod.runtime.plan import EXIT_USER_ERROR

ON_PURPOSE = {-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGKILL}
"""SIGKILL too: operators and tests send it. The kernel sends it when memory ends, which is counted."""


def described(code: int) -> str:
    """The exit code of a process, negative for a signal, in words."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def crash(code: int, *, left: bool, out_of_memory: bool) -> str:
    """Why a process crashed; empty when it was ended on purpose. `left`: it had said good-bye to the registry."""
    if code == -signal.SIGKILL and out_of_memory:
        return "killed because memory ended"
    if code in ON_PURPOSE or (code == 0 and left) or code == EXIT_USER_ERROR:
        return ""
    return described(code)


def memory_kills() -> int:
    """How many processes of this machine, or of our control group, the kernel has killed for their memory."""
    for file in (_group_file(), Path("/proc/vmstat")):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return 0


def _group_file() -> Path:
    try:
        path = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
    except OSError:
        path = ""
    return Path(f"/sys/fs/cgroup{os.path.normpath(path or '/')}") / "memory.events"
