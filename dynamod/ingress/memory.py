"""Giving memory back to the system after something large was loaded and dropped."""

import ctypes
import gc
import logging
import sys

log = logging.getLogger("dynamod.frontend")


def trim_memory(*, collect: bool = True) -> None:
    """Return freed memory to the system. glibc keeps it otherwise; where it is not glibc nothing happens.

    `collect`: find unused objects first, which keeps all threads waiting.
    """
    if collect:
        gc.collect()
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError) as error:  # another libc
        log.debug("memory is not trimmed: %s", error)
