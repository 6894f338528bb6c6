"""Slow is not stuck: how the clocks of a process are read and what they say."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.message.errors import UserError
from dynamod.runtime.liveness import COMPUTE_FACTOR, ENDLESS, SLOW_FACTOR, Clocks, Signs, Verdict, clocks_of, judge

SECONDS = st.floats(0, 1e6)
SIGNS = st.builds(Signs, SECONDS, SECONDS | st.none(), st.integers(0, 10**6), SECONDS, SECONDS, SECONDS)


def test_a_process_without_messages_is_stuck_when_it_does_not_work() -> None:
    clocks = Clocks()
    assert judge(clocks, Signs(1.9)) == Verdict()
    assert judge(clocks, Signs(2.1)) == Verdict("stuck", "silent for 2 s")
    assert judge(clocks, Signs(2.1, idle=0.3)) == Verdict("slow", "without a message for 2 s, and it computes")
    assert judge(clocks, Signs(599.0, idle=0.3)).state == "slow"
    assert judge(clocks, Signs(601.0, idle=0.3)).state == "stuck", "an endless loop computes, too"
    assert judge(clocks, Signs(5000.0, idle=0.3, unread=0.3)).state == "slow", "it reads"


def test_a_step_is_stuck_without_progress_and_without_work() -> None:
    clocks = Clocks()
    assert judge(clocks, Signs(0.5, 59.0, 37)) == Verdict()
    why = "in one step of 37 tokens for more than 60 s without progress"
    assert judge(clocks, Signs(0.5, 61.0, 37)) == Verdict("stuck", why)
    assert judge(clocks, Signs(0.5, 61.0, 37, idle=0.2)) == Verdict()
    assert judge(clocks, Signs(0.5, 599.0, 37, idle=0.2)) == Verdict()
    why = "in one step of 37 tokens for more than 600 s without progress"
    assert judge(clocks, Signs(0.5, 601.0, 37, idle=0.2)) == Verdict("stuck", why)


def test_a_step_that_usually_takes_long_may_take_longer() -> None:
    usual = 100.0
    assert judge(Clocks(), Signs(0.5, COMPUTE_FACTOR * usual - 1, 37, usual, idle=0.2)).state == "slow"
    assert judge(Clocks(), Signs(0.5, COMPUTE_FACTOR * usual + 1, 37, usual, idle=0.2)).state == "stuck"


def test_a_step_is_slow_beside_what_is_usual() -> None:
    usual = 10.0
    assert judge(Clocks(), Signs(0.5, 29.0, 37, 0.1)) == Verdict()
    assert judge(Clocks(), Signs(0.5, 31.0, 37, 0.1)).state == "slow"
    assert judge(Clocks(), Signs(0.5, SLOW_FACTOR * usual - 1, 37, usual, idle=0.1)) == Verdict()
    slow = judge(Clocks(), Signs(0.5, SLOW_FACTOR * usual + 1, 37, usual, idle=0.1))
    assert slow == Verdict("slow", "in a step of 37 tokens for 81 s; usual are 10 s")
    assert judge(Clocks(), Signs(0.5, 50.0, 37, 0.0)) == Verdict(), "what is usual is not known"


@given(SIGNS, SECONDS)
def test_more_signs_of_work_never_make_a_process_stuck(signs: Signs, later: float) -> None:
    if judge(Clocks(), signs).state == "stuck":
        return
    for better in (
        signs._replace(quiet=min(signs.quiet, later)),
        signs._replace(idle=min(signs.idle, later)),
        signs._replace(unread=min(signs.unread, later)),
        signs._replace(usual=signs.usual + later),
        signs._replace(step=None),
    ):
        assert judge(Clocks(), better).state != "stuck"


@given(SIGNS)
def test_a_process_that_reads_is_never_stuck(signs: Signs) -> None:
    assert judge(Clocks(), signs._replace(unread=0.5, idle=0.5)).state != "stuck"


def test_nothing_is_known_of_work_without_a_look() -> None:
    assert (Signs(0.0).idle, Signs(0.0).unread) == (ENDLESS, ENDLESS)


def test_settings_come_from_the_configuration_then_from_the_environment() -> None:
    environ = {"DYNAMOD_STALL_TIMEOUT": "30", "DYNAMOD_HEARTBEAT_TIMEOUT": "5"}
    assert clocks_of([{}], {}) == Clocks()
    assert clocks_of([{}], environ) == Clocks(heartbeat=5, stall=30)
    assert clocks_of([{"stall-timeout": 7}, {"stall_timeout": 3}], environ) == Clocks(heartbeat=5, stall=7)
    assert clocks_of([{"compute_timeout": 9, "slow_timeout": 4}], {}) == Clocks(compute=9, slow=4)
    assert clocks_of([{"stall_per_token": 0.5}], {}) == Clocks(), "accepted, without effect"


@pytest.mark.parametrize("value", [0, -1, "x", True, float("nan"), 1e9])
def test_a_wrong_one_is_named(value: Any) -> None:
    with pytest.raises(UserError, match="stall_timeout is"):
        clocks_of([{"stall_timeout": value}], {})
    with pytest.raises(UserError, match="DYNAMOD_HEARTBEAT_TIMEOUT is"):
        clocks_of([], {"DYNAMOD_HEARTBEAT_TIMEOUT": "soon"})
