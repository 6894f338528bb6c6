import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamod.daemon.notify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(5)
        yield sock


def notifier(manager: socket.socket, **environ: str) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": manager.getsockname(), **environ})


def test_what_is_said(manager: socket.socket) -> None:
    us = notifier(manager)
    us.ready()
    us.ready("serving 1 graph")
    us.ready("two\nlines  READY=1")
    us.stopping()
    us.watchdog()
    us.close()
    assert [manager.recv(999) for _ in range(5)] == [
        b"READY=1",
        b"READY=1\nSTATUS=serving 1 graph",
        b"READY=1\nSTATUS=two lines READY=1",
        b"STOPPING=1",
        b"WATCHDOG=1",
    ]


def test_reloading_carries_the_monotonic_time(manager: socket.socket) -> None:
    us = notifier(manager)
    us.reloading()
    us.close()
    first, second = manager.recv(999).split(b"\n")
    assert first == b"RELOADING=1"
    assert second.startswith(b"MONOTONIC_USEC=")
    assert abs(int(second.partition(b"=")[2]) / 1e6 - time.monotonic()) < 60


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_abstract_socket() -> None:
    name = f"dynamod-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name)
        sock.settimeout(5)
        us = Notifier({"NOTIFY_SOCKET": "@" + name})
        us.ready()
        us.close()
        assert sock.recv(99) == b"READY=1"


def test_without_systemd_nothing_happens() -> None:
    us = Notifier({})
    us.ready("x")
    us.watchdog()
    us.close()
    assert us.watchdog_interval is None


@pytest.mark.parametrize("path", ["{}/nobody", "{}/" + "x" * 200, "{}", "a\0b", "vsock:2:1234"])
def test_a_broken_socket_is_logged_once(path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    us = Notifier({"NOTIFY_SOCKET": path.format(tmp_path)})
    with caplog.at_level(logging.WARNING):
        us.ready()
        us.watchdog()
    us.close()
    assert len(caplog.records) == 1


def test_a_full_socket_does_not_block(manager: socket.socket) -> None:
    us = notifier(manager)
    for _ in range(10_000):
        us.watchdog()
    us.close()


def test_a_manager_that_comes_back_is_found(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    us = Notifier({"NOTIFY_SOCKET": path})
    us.ready("lost")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        us.ready("found")
        us.close()
        assert sock.recv(99) == b"READY=1\nSTATUS=found"


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_interval(environ: dict[str, str], interval: float | None) -> None:
    assert Notifier(environ).watchdog_interval == interval
