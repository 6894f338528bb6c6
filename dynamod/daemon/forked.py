"""A child process that continues from the modules which its parent has imported.

Only for a parent without threads and without an event loop: a thread that holds a lock does not exist in the child.
"""

import atexit
import contextlib
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import IO, NoReturn


class Forked:
    """A process in a session of its own that calls `run` and ends; its exit code is that of `SystemExit`.

    `environ`: its variables. `keep`: the only descriptor of the parent that it keeps. Raises OSError.
    """

    def __init__(self, run: Callable[[], object], environ: Mapping[str, str], *, keep: int) -> None:
        self._code: int | None = None
        out, err = os.pipe(), os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            for end in (*out, *err):
                os.close(end)
            raise
        if not self.pid:
            _be(run, environ, keep, out[1], err[1])
        os.close(out[1])
        os.close(err[1])
        self.stdout: IO[bytes] = io.FileIO(out[0])
        self.stderr: IO[bytes] = io.FileIO(err[0])

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._look(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the exit code."""
        code = self._look(0)
        assert code is not None
        return code

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _look(self, options: int) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # SIGCHLD is ignored: the kernel keeps no exit codes, and Popen says 0, too
                pid, status = self.pid, 0
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def _be(run: Callable[[], object], environ: Mapping[str, str], keep: int, out: int, err: int) -> NoReturn:
    """The life of the child. The frames of the parent's code above this one are never returned to."""
    try:
        _become(environ, keep, out, err)
    except BaseException:
        try:
            traceback.print_exc()
        finally:
            os._exit(1)
    finish(run)


def finish(run: Callable[[], object]) -> NoReturn:
    """Call `run` and end the process as the interpreter would, whatever frames of its parent are above this one.

    What the interpreter would free at its end is left to the kernel: most of it is memory shared with the parent.
    """
    code = 1
    try:
        try:
            run()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code)


def _become(environ: Mapping[str, str], keep: int, out: int, err: int) -> None:
    """Be as a new interpreter would be: session, descriptors, variables, arguments, first place of imports."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for place, descriptor in enumerate((nowhere, out, err)):
        os.dup2(descriptor, place)
    os.closerange(3, keep)
    os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _output(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _output(2, "backslashreplace")  # type: ignore[misc]
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = ["dynamod.runtime.host"]
    sys.modules["__main__"] = sys.modules["dynamod.runtime.host"]  # multiprocessing starts its processes with it
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()


def _output(number: int, errors: str) -> io.TextIOWrapper:
    raw = io.FileIO(number, "wb", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)
