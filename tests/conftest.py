"""What holds for all tests."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from . import run_folder

# The time of one example depends on the machine and its load, so examples have no deadline of their own.
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "quick"))

# A test run in the background (`nohup pytest &`) inherits ignored signals. An ignored signal stays ignored in every
# program that a test starts; a signal with a handler is reset to its default there. The handler does nothing here.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


def pytest_configure(config: pytest.Config) -> None:
    """Keep bytecode where Python is told to keep none, as images of containers tell it; make the folder of the run.

    Each process of each run, and each command that the tests start, would compile the same files again: 25 seconds of
    work for the files of the tests alone.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if not hasattr(config, "workerinput"):  # else it was made by the process that has started this one
        config.add_cleanup(run_folder.make())


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Two and a half for each core: end-to-end tests wait for other processes most of their time. One for each GB."""
    if config.option.numprocesses != "auto":
        return None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(2, min((os.cpu_count() or 1) * 5 // 2, memory // 10**9))


LONG = ("test_documents.py", "e2e", "ingress", "real")
"""What takes longest: a file with one test of a minute, and folders. They begin first, so that no process waits for
one long file at the end."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Begin each folder at another place in each process, so that no two compile the same file at the same time."""
    report = yield
    if isinstance(collector, pytest.Directory) and report.passed and hasattr(collector.config, "workerinput"):
        given = collector.config.workerinput
        begin = len(report.result) * int(given["workerid"].removeprefix("gw")) // given["workercount"]
        report.result[:] = report.result[begin:] + report.result[:begin]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first. Processes take whole files, in this order, which is the same in each process.

    Before pytest groups tests by what they share: what it does depends on the order.
    """
    here = Path(__file__).parent

    @cache  # of 9,500 tests in 600 files
    def rank(path: Path) -> tuple[int, Path]:
        parts = path.relative_to(here).parts if here in path.parents else ()  # `tools` may be asked too
        return min((LONG.index(part) for part in parts if part in LONG), default=len(LONG)), path

    items.sort(key=lambda item: rank(item.path))


def pytest_collection_finish() -> None:
    """Let the collector pass by what all test files have imported: servers in this process collect when they start.

    HTTP clients of this process share one TLS context: each would read the certificates of all authorities again.
    """
    for name in ("httpx._transports.default", "httpx2._transports.default"):  # openai and anthropic import either
        clients = sys.modules.get(name)
        if clients is not None and hasattr(clients, "create_ssl_context"):
            clients.create_ssl_context = cache(clients.create_ssl_context)
    gc.collect()
    gc.freeze()
