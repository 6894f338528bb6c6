"""The command line of this process as `ps` and `/proc/PID/cmdline` show it.

The kernel reads it from the memory of the process, so a process can overwrite its own copy; what Python has in
`sys.argv` is another copy and stays as it is.
"""

import contextlib
import os

_ARGUMENTS_START = 47
"""Place of the address of the first argument's text in /proc/self/stat, where the pid has place 0."""


def read() -> bytes:
    """The words, each with a NUL at its end. Raises OSError where there is no /proc."""
    with open("/proc/self/cmdline", "rb", buffering=0) as file:
        return file.read()


def write(text: bytes) -> None:
    """Overwrite it with a text of the same length.

    Raises OSError where the memory cannot be written, ValueError where its address is not known.
    """
    with open("/proc/self/stat", "rb", buffering=0) as file:
        fields = file.read().rpartition(b") ")[2].split()  # the program's name, before it, may have spaces
    address = int(fields[_ARGUMENTS_START - 2])
    if not address:
        raise ValueError("the system does not say where the command line is")
    memory = os.open("/proc/self/mem", os.O_RDWR)
    try:
        before = os.pread(memory, len(text), address)
        if before != read():
            raise ValueError("the command line is elsewhere")
        os.pwrite(memory, text, address)
    finally:
        os.close(memory)


def retitle(title: str) -> None:
    """Replace the command line with `title`, cut to the old length. A system that forbids this keeps the old one."""
    with contextlib.suppress(OSError, ValueError):
        size = len(read())
        write(title.encode()[: size - 1].ljust(size, b"\0"))
