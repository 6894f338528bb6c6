"""What a step usually takes."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dynamod.engine.step_times import KEPT_STEPS, StepTimes


def test_nothing_is_known_at_first() -> None:
    assert StepTimes().usual(7) == 0.0


def test_steps_of_a_size_are_compared_with_their_like() -> None:
    times = StepTimes()
    for _ in range(3):
        times.add(1, 0.010)
        times.add(1000, 1.0)
    assert times.usual(1) == pytest.approx(0.010)
    assert times.usual(600) == pytest.approx(0.6)
    assert times.usual(2) == pytest.approx(0.020), "of the nearest smaller size"
    assert times.usual(4000) == pytest.approx(4.0)


def test_one_long_step_changes_nothing_and_a_slower_machine_is_learned() -> None:
    times = StepTimes()
    for _ in range(KEPT_STEPS):
        times.add(1, 0.010)
    times.add(1, 60.0)
    assert times.usual(1) == pytest.approx(0.010)
    for _ in range(KEPT_STEPS):
        times.add(1, 0.1)
    assert times.usual(1) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e3)), min_size=1), st.integers(0, 10**6))
def test_any_size_has_an_estimate(steps: list[tuple[int, float]], tokens: int) -> None:
    times = StepTimes()
    for one in steps:
        times.add(*one)
    assert 0 <= times.usual(tokens) < 1e10
