"""Which processes are unresponsive, by clocks alone."""

import logging

import pytest

from dynamod.daemon.heartbeat import LOOK, HeartbeatMonitor
from dynamod.daemon.node import _clocks
from dynamod.runtime.liveness import Clocks


class Watching:
    """A monitor with a clock that the test moves; processes are numbers."""

    def __init__(self, **patience: float) -> None:
        self.now = self.looked = 100.0
        self.told: list[tuple[int, str]] = []
        self.monitor = HeartbeatMonitor(lambda: self.now)
        self.processes = {
            number: self.monitor.watch(f"p{number}", Clocks(patience.get(f"p{number}", 2.0)), self.teller(number))
            for number in (1, 2)
        }

    def teller(self, number: int):
        return lambda why: self.told.append((number, why))

    def beat(self, number: int, step: float | None = None, tokens: int = 0) -> None:
        self.processes[number].beat(step, tokens)

    def passes(self, seconds: float, *beating: int) -> None:
        """Time goes by, with a look every 0.1 s, and heartbeats of some processes."""
        end = self.now + seconds
        while self.now < end:
            self.now += LOOK
            for number in beating:
                self.beat(number)
            self.looked = self.monitor.look(self.looked)


def test_a_process_without_a_heartbeat_is_unresponsive_until_the_next_one() -> None:
    here = Watching()
    here.beat(1)
    here.beat(2)
    here.passes(1.9, 2)
    assert here.told == []
    here.passes(0.3, 2)
    assert here.told == [(1, "silent for 2 s")]
    here.passes(5, 2)
    assert here.told == [(1, "silent for 2 s")]
    assert (here.processes[1].why, here.processes[2].why) == ("silent for 2 s", "")
    here.beat(1)
    assert here.told == [(1, "silent for 2 s"), (1, "")]


def test_any_message_is_a_sign_of_life_after_the_first_heartbeat() -> None:
    here = Watching()
    here.processes[1].sign()
    assert here.processes[1].age is None
    here.passes(5)
    here.beat(1)
    here.passes(1.9)
    here.processes[1].sign()
    here.passes(1.9)
    assert here.told == []
    assert here.processes[1].age == pytest.approx(1.9, abs=0.2)


def test_a_step_that_does_not_end() -> None:
    here = Watching()
    here.beat(1, step=9.5, tokens=100)
    here.passes(1.0)
    assert here.told == [], "10 s and 0.01 s per token"
    here.passes(0.8)
    assert here.told == [(1, "in one step of 100 tokens for more than 11 s")]
    here.beat(1)
    assert here.told[1:] == [(1, "")]


def test_who_has_gone_or_sent_no_heartbeat_is_not_judged() -> None:
    here = Watching()
    here.beat(1)
    here.monitor.forget(here.processes[1])
    here.passes(5)
    assert here.told == []
    here.beat(2)
    here.passes(3)
    here.monitor.forget(here.processes[2])
    assert here.told == [(2, "silent for 2 s"), (2, "")], "nothing of it stays in the registry"


def test_a_late_look_judges_nobody() -> None:
    here = Watching()
    here.beat(1)
    here.now += 60
    here.looked = here.monitor.look(here.looked)
    here.passes(1.9)
    assert here.told == []
    here.passes(0.3)
    assert here.told == [(1, "silent for 2 s")]


def test_a_process_may_ask_for_more_patience() -> None:
    here = Watching(p1=30)
    here.beat(1)
    here.beat(2)
    here.passes(29)
    assert here.told == [(2, "silent for 2 s")]
    here.passes(2)
    assert here.told[1:] == [(1, "silent for 30 s")]


def test_the_variable_is_for_all(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DYNAMOD_HEARTBEAT_TIMEOUT", "5")
    assert _clocks().heartbeat == 5
    monkeypatch.setenv("DYNAMOD_HEARTBEAT_TIMEOUT", "soon")
    with caplog.at_level(logging.ERROR):
        assert _clocks() == Clocks()
    assert "DYNAMOD_HEARTBEAT_TIMEOUT is 'soon'" in caplog.text
