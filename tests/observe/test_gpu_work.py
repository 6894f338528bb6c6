"""Processes that use a GPU, with a mock of NVML: a GPU cannot be had here."""

import os
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dynamod.daemon.evidence import Evidence
from dynamod.observe import gpu_work


class NVMLError(Exception):
    """As pynvml has it."""


@pytest.fixture
def mock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Samples of the second of two GPUs; the first one does not support them."""
    samples: list[Any] = []

    def utilization(device: int, since: int) -> list[Any]:
        if device == 0 or not samples:
            raise NVMLError
        return samples

    module = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetProcessUtilization=utilization,
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    gpu_work._devices.cache_clear()
    yield samples
    gpu_work._devices.cache_clear()


def used(pid: int, sm: int = 0, memory: int = 0, ago: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, smUtil=sm, memUtil=memory, timeStamp=int((time.time() - ago) * 1e6))


def test_processes_by_a_mock_of_nvml(mock: list[Any]) -> None:
    assert gpu_work.gpu_processes(2) == set()
    mock.extend([used(1, sm=40), used(2, memory=3), used(3), used(4, sm=9, ago=60)])
    assert gpu_work.gpu_processes(2) == {1, 2}


def test_without_a_driver_no_process_is_known(mock: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise NVMLError

    monkeypatch.setattr(sys.modules["pynvml"], "nvmlInit", fails)
    mock.append(used(1, sm=40))
    assert gpu_work.gpu_processes(2) == set()


def test_a_process_that_waits_for_its_gpu_works_by_a_mock_of_nvml(mock: list[Any]) -> None:
    pid, rest = os.fork(), time.monotonic() + 60
    if not pid:
        while time.monotonic() < rest:
            time.sleep(60)
        os._exit(0)
    try:
        evidence = Evidence(pid)
        for now in (1.0, 2.0):
            evidence.look(now)
        assert evidence.worked is None
        mock.append(used(pid, sm=90))
        evidence.look(3.0)
        assert evidence.worked == 3.0
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
