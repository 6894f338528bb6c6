"""A download as a process: `python -m dynamod.preprocess.download MODEL`, so that it can be ended at any moment.

Prints a line of JSON twice a second (`Progress`), and at the end `Found` or `Failed`. `--look`: says whether the model
is here or on the hub, and downloads nothing.
"""

import argparse
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from dynamod.message.errors import UserError

from .reference import reference

INTERVAL = 0.5
"""Seconds between two looks at what has come."""
WINDOW = 10
"""Looks over which the speed is taken."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Bytes that are here, of how many (None: not known), and bytes per second."""

    done: int
    total: int | None
    speed: float


class Found(msgspec.Struct, frozen=True, tag="found"):
    """Where the model is, or with `--look` will be. `loaded`: bytes that it has, when some of them had to be loaded."""

    path: str
    loaded: int | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why there is no model."""

    error: str
    hint: str = ""


Line = Progress | Found | Failed


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--no-weights", action="store_true")
    parser.add_argument("--look", action="store_true")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: _leave(130))
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # the last error is told once, as ours
    worker = threading.Thread(
        target=_work, args=(arguments.model, not arguments.no_weights, arguments.look), daemon=True
    )
    worker.start()
    worker.join()
    _leave(0)


def _work(model: str, weights: bool, look: bool) -> None:
    from .cache import cached
    from .hub import find

    try:
        wanted = reference(model)
        assert wanted is not None
        found = (cached(wanted, weights=weights) if look else None) or find(wanted, weights=weights)
        if look and not isinstance(found, Path):
            found = found.place
        if isinstance(found, Path):
            _say(Found(str(found)))
            return
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(found.done, found.total(), over), daemon=True)
        watch.start()
        path = found.run()
        over.set()
        watch.join()
        _say(Found(str(path), found.done()))
    except UserError as error:
        _say(Failed(str(error), error.hint))


def _watch(done: Callable[[], int], total: int | None, over: threading.Event) -> None:
    looks = deque[tuple[float, int]](maxlen=WINDOW)
    while not over.wait(INTERVAL if looks else 0.0):
        looks.append((time.monotonic(), done()))
        (first, before), (now, here) = looks[0], looks[-1]
        _say(Progress(here, total, max(0, here - before) / (now - first) if now > first else 0.0))


def _say(line: Line) -> None:
    try:
        print(msgspec.json.encode(line).decode(), flush=True)
    except OSError:  # the process that asked is gone
        _leave(1)


def _leave(code: int) -> NoReturn:
    """End at once, whatever the threads do. No later download would continue the library's own unfinished files."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
            if target.endswith(".incomplete"):
                os.unlink(target)
        except OSError:
            continue
    os._exit(code)


if __name__ == "__main__":
    main()
