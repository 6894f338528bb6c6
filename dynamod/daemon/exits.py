"""How a process ended: on purpose, or by a crash that one of its requests may have caused."""

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
from pathlib import Path

from dynamod.runtime.plan import EXIT_USER_ERROR

ON_PURPOSE = {-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGKILL}
"""SIGKILL too: operators and tests send it. The kernel sends it when memory ends, which is counted."""


EXIT = 0.2
"""Seconds between the end of a process's connection and that of the process itself, at most."""

_GET_INFO = 0xC040FF0B  # PIDFD_GET_INFO of linux/pidfd.h, with the first 64 bytes of struct pidfd_info
_INFO = struct.Struct("Q52xi")  # mask, exit_code
_INFO_EXIT = 1 << 3  # PIDFD_INFO_EXIT


def described(code: int, phase: str = "") -> str:
    """The exit code of a process, negative for a signal, in words. `phase`: of its start, in which a signal came."""
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}{f' during {phase}' if phase else ''}"


def crash(code: int, *, left: bool, out_of_memory: bool) -> str:
    """Why a process crashed; empty when it was ended on purpose. `left`: it had said good-bye to the registry."""
    if code == -signal.SIGKILL and out_of_memory:
        return "killed because memory ended"
    if code in ON_PURPOSE or (code == 0 and left) or code == EXIT_USER_ERROR:
        return ""
    return described(code)


class ExitWatch:
    """The exit code of a process that is no child of ours. Linux 6.15 and later keep it with a process descriptor."""

    def __init__(self, pid: int) -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.pidfd_open(pid)

    def close(self) -> None:
        """Watch no longer."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    async def code(self, seconds: float) -> int | None:
        """Its exit code, negative for a signal. None: it has not ended within `seconds`, or the kernel does not say."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(seconds):
                while self._fd >= 0:
                    if (status := self._status()) is not None:
                        return os.waitstatus_to_exitcode(status)
                    await asyncio.sleep(0.005)
        return None

    def _status(self) -> int | None:
        """Raises OSError where the kernel knows no such question."""
        info = bytearray(_INFO.size)
        _INFO.pack_into(info, 0, _INFO_EXIT, 0)
        fcntl.ioctl(self._fd, _GET_INFO, info)
        mask, status = _INFO.unpack(info)
        return status if mask & _INFO_EXIT else None


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
