"""The collector of reference cycles while a process starts."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from dynamod.runtime import garbage


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.enable()


async def test_a_start_that_takes_long_has_its_collector_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "PAUSE", 0.01)
    garbage.pause()
    garbage.resume_later()
    assert not gc.isenabled()
    await asyncio.sleep(0.02)
    assert gc.isenabled()


def test_what_a_start_has_made_is_not_looked_at_again() -> None:
    garbage.pause()
    before = gc.get_freeze_count()
    made = [[number] for number in range(1000)]
    collections: list[str] = []

    def look(phase: str, _info: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(look)
    try:
        garbage.settle()
    finally:
        gc.callbacks.remove(look)
    assert collections == [], "open streams would wait for it"
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)
    assert gc.get_threshold() == (15_000, 0, 100)
