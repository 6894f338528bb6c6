"""Values of secret flags like `--api-key KEY`, overwritten in the process's own command line.

Every user of a machine can read `/proc/PID/cmdline`, which `ps` prints. The kernel reads it from the memory of the
process, so a process can overwrite its own copy; what Python has in `sys.argv` is another copy and stays as it is.
"""

import os
import re
import sys
from collections.abc import Sequence

SECRET = r"(?:[\w.-]*[-_.])?(?:api[-_]?keys?|token|secret|password|passwd)"
"""A flag's name, or a key of JSON, whose value is hidden. The name of a file is not, as that of `--api-key-file`."""
_FLAG = re.compile(rf"--{SECRET}(?P<sign>=|$)".encode(), re.IGNORECASE)
_MEMBER = re.compile(rf'"{SECRET}"\s*:\s*"((?:[^"\\]|\\.)*)"'.encode(), re.IGNORECASE)
_ARGUMENTS_START = 47
"""Place of the address of the first argument's text in /proc/self/stat, where the pid has place 0."""
HINT = "--api-key-file FILE and the variable DYN_API_KEYS keep a key off the command line"


def hide_secrets() -> None:
    """Overwrite secrets in the command line of this process with stars, and warn where the system forbids it.

    To be called before a child is forked and before a slow import. It does nothing without a secret.
    """
    try:
        with open("/proc/self/cmdline", "rb", buffering=0) as file:
            words = file.read().split(b"\0")
    except OSError:
        return  # no /proc: other users have none either
    found = secrets(words)
    if not any(start < end for spans in found for start, end in spans):
        return
    try:
        _overwrite(words, found)
    except (OSError, ValueError):
        print(f"warning: other users can read the key in the list of processes; {HINT}", file=sys.stderr)


def secrets(words: Sequence[bytes]) -> list[list[tuple[int, int]]]:
    """Per word of a command line the places (start, end) of what is secret in it."""
    found: list[list[tuple[int, int]]] = []
    is_value = False
    for word in words:
        flag = _FLAG.match(word)
        if is_value and not word.startswith(b"-"):
            found.append([(0, len(word))])
        elif flag and flag["sign"]:
            found.append([(flag.end(), len(word))])
        else:
            found.append([match.span(1) for match in _MEMBER.finditer(word)])
        is_value = flag is not None and not flag["sign"]
    return found


def _overwrite(words: Sequence[bytes], found: Sequence[Sequence[tuple[int, int]]]) -> None:
    """Raises OSError where the memory cannot be written, ValueError where its address is not known."""
    with open("/proc/self/stat", "rb", buffering=0) as file:
        fields = file.read().rpartition(b") ")[2].split()  # the program's name, before it, may have spaces
    address = int(fields[_ARGUMENTS_START - 2])
    if not address:
        raise ValueError("the system does not say where the command line is")
    memory = os.open("/proc/self/mem", os.O_RDWR)
    try:
        for word, spans in zip(words, found, strict=True):
            if os.pread(memory, len(word), address) != word:
                raise ValueError("the command line is elsewhere")
            for start, end in spans:
                os.pwrite(memory, b"*" * (end - start), address + start)
            address += len(word) + 1
    finally:
        os.close(memory)
