"""Becomes another program, which the kernel ends when the process that started it is gone, however that ended.

Run as `python launch.py PARENT-PID PROGRAM WORDS...`. It is a program of its own, because what a process asks of the
kernel between fork and exec must not be Python in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Entry point. A program that cannot be run is said in one line."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before the kernel was asked
        sys.exit(1)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
