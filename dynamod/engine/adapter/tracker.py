"""Shared memory of an engine's processes is removed even when all of them are killed at once."""

import os
import signal
import subprocess
import sys
from multiprocessing import resource_tracker
from typing import Any


def keep_tracker_apart() -> None:
    """Start Python's resource tracker outside our process group and our children, which are killed as a whole.

    The tracker ends when no process holds its pipe any more. Then it removes the segments and semaphores that are left
    in /dev/shm. Processes that are spawned from here share the tracker. To be called before the first use of a tracker.
    """
    tracker: Any = resource_tracker._resource_tracker  # it has no public way to be started by another process
    if tracker._fd is not None:
        return
    reader, writer = os.pipe()
    program = f"""
import os
if os.fork():
    os._exit(0)
from multiprocessing.resource_tracker import main
main({reader})
"""
    try:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            subprocess.run(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[reader],
                start_new_session=True,
                check=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    finally:
        os.close(reader)
    tracker._fd = writer
