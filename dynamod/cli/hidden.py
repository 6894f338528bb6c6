"""Values of secret flags like `--api-key KEY`, overwritten in the process's own command line.

Every user of a machine can read `/proc/PID/cmdline`, which `ps` prints. The kernel reads it from the memory of the
process, so a process can overwrite its own copy; what Python has in `sys.argv` is another copy and stays as it is.
"""

import re
import sys
from collections.abc import Sequence

from dynamod.runtime import command_line

SECRET = r"(?:[\w.-]*[-_.])?(?:api[-_]?keys?|token|secret|password|passwd)"
"""A flag's name, or a key of JSON, whose value is hidden. The name of a file is not, as that of `--api-key-file`."""
_FLAG = re.compile(rf"--{SECRET}(?P<sign>=|$)".encode(), re.IGNORECASE)
_MEMBER = re.compile(rf'"{SECRET}"\s*:\s*"((?:[^"\\]|\\.)*)"'.encode(), re.IGNORECASE)
HINT = "--api-key-file FILE and the variable DYN_API_KEYS keep a key off the command line"


def hide_secrets() -> None:
    """Overwrite secrets in the command line of this process with stars, and warn where the system forbids it.

    To be called before a child is forked and before a slow import. It does nothing without a secret.
    """
    try:
        words = command_line.read().split(b"\0")
    except OSError:
        return  # no /proc: other users have none either
    found = secrets(words)
    if not any(start < end for spans in found for start, end in spans):
        return
    try:
        command_line.write(b"\0".join(map(_starred, words, found)))
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


def _starred(word: bytes, spans: Sequence[tuple[int, int]]) -> bytes:
    for start, end in spans:
        word = word[:start] + b"*" * (end - start) + word[end:]
    return word
