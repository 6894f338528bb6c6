"""The stdout of a command: letters that its encoding lacks, and files and pipes that take nothing more."""

import contextlib
import errno
import io
import os
import sys

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""How a write to a file or device ends that takes nothing more."""


def tolerate_letters() -> None:
    """Write a question mark for a letter that the encoding of stdout lacks, as in ASCII, instead of an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with contextlib.suppress(OSError, ValueError):  # its descriptor has become that of a pipe
            sys.stdout.reconfigure(errors="replace")


def leave_stdout() -> None:
    """Write nothing more to a stdout that takes nothing; what is buffered would be an error at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # no descriptor at all
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def unwritten() -> str:
    """Write what is buffered; why that fails, empty when it does not or when the reader of a pipe has left."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        leave_stdout()
        return "" if isinstance(error, BrokenPipeError) else error.strerror or str(error)
    except ValueError:  # it is closed
        return ""
    return ""
