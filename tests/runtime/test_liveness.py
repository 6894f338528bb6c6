"""Slow is not stuck: how the clocks of a process are read and what they say."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.message.errors import UserError
from dynamod.runtime.liveness import Clocks, clocks_of, judge


def test_a_long_prefill_is_slow_and_an_endless_step_is_stuck() -> None:
    clocks = Clocks()
    assert judge(clocks, 0.5, 60.0, 8000) == ""
    assert judge(clocks, 0.5, 91.0, 8000) == "in one step of 8000 tokens for more than 90 s"
    assert judge(clocks, 0.5, 10.5, 1) == "in one step of 1 tokens for more than 10 s"
    assert judge(clocks, 0.5, None, 0) == ""
    assert judge(clocks, 2.1, None, 0) == "silent for 2 s"


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_tokens_never_shorten_the_budget(quiet: float, step: float, tokens: int, more: int) -> None:
    if not judge(Clocks(), quiet, step, tokens):
        assert not judge(Clocks(), quiet, step, tokens + more)
        assert not judge(Clocks(), quiet, None, 0)


def test_settings_come_from_the_configuration_then_from_the_environment() -> None:
    environ = {"DYNAMOD_STALL_TIMEOUT": "30", "DYNAMOD_HEARTBEAT_TIMEOUT": "5"}
    assert clocks_of([{}], {}) == Clocks()
    assert clocks_of([{}], environ) == Clocks(heartbeat=5, stall=30)
    assert clocks_of([{"stall-timeout": 7}, {"stall_timeout": 3}], environ) == Clocks(heartbeat=5, stall=7)
    assert clocks_of([{"stall_per_token": 0.5}], {}) == Clocks(per_token=0.5)


@pytest.mark.parametrize("value", [0, -1, "x", True, float("nan"), 1e9])
def test_a_wrong_one_is_named(value: Any) -> None:
    with pytest.raises(UserError, match="stall_timeout is"):
        clocks_of([{"stall_timeout": value}], {})
    with pytest.raises(UserError, match="DYNAMOD_HEARTBEAT_TIMEOUT is"):
        clocks_of([], {"DYNAMOD_HEARTBEAT_TIMEOUT": "soon"})
