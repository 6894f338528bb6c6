"""Which processes are unresponsive, by clocks alone."""

import logging

import pytest

from dynamod.daemon.heartbeat import LOOK, HeartbeatMonitor
from dynamod.daemon.node import _clocks
from dynamod.message.node import Heartbeat
from dynamod.runtime.liveness import Clocks, Verdict


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
        return lambda verdict: self.told.append((number, verdict.why))

    def beat(self, number: int, step: float | None = None, tokens: int = 0, usual: float = 0.0) -> None:
        self.processes[number].beat(Heartbeat(step, tokens, usual))

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
    assert (here.processes[1].verdict, here.processes[2].verdict) == (Verdict("stuck", "silent for 2 s"), Verdict())
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
    here.beat(1, step=59.5, tokens=100)
    here.passes(0.4)
    assert here.told == []
    here.passes(0.4)
    assert here.told == [(1, "in one step of 100 tokens for more than 60 s without progress")]
    assert here.processes[1].progress_age == pytest.approx(60.3, abs=0.2)
    here.beat(1)
    assert here.told[1:] == [(1, "")]


def test_a_step_that_takes_long_is_slow_and_then_over() -> None:
    here = Watching()
    here.beat(1, step=31.0, tokens=100, usual=0.5)
    assert here.told == [(1, "in a step of 100 tokens for 31 s; usual are 0.5 s")]
    assert (here.processes[1].verdict.state, here.processes[1].why) == ("slow", ""), "slow is not stuck"
    here.beat(1, step=0.1, tokens=1, usual=0.5)
    assert here.told[1:] == [(1, "")]


def test_a_stuck_process_is_killed_after_four_heartbeat_timeouts_and_a_slow_one_never() -> None:
    here = Watching()
    killed: list[tuple[float, str]] = []
    monitor = here.monitor
    stuck = monitor.watch("stuck", Clocks(), lambda _: None, kill=lambda why: killed.append((here.now, why)))
    slow = monitor.watch("slow", Clocks(), lambda _: None, kill=lambda why: pytest.fail(why))
    stuck.beat(Heartbeat())
    for _ in range(450):
        slow.beat(Heartbeat(here.now - 100.0, 7, 0.1))  # its event loop runs while the step lasts
        here.passes(LOOK)
    assert slow.verdict.state == "slow"
    when, why = killed[0]
    assert (when - 100.0, why) == (pytest.approx(10.0, abs=0.3), "silent for 2 s")


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
