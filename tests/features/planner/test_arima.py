"""The predictor that needs statsmodels; CI runs these with the extra."""

import random

import pytest

from dynamod.features.planner.arima import FEWEST, by_arima
from dynamod.features.planner.demand import Arrivals


def test_few_or_equal_values_have_no_trend() -> None:
    assert by_arima([1.0] * (FEWEST - 1), 6) == (1.0, 0.0)
    assert by_arima([2.0] * 50, 6) == (2.0, 0.0)


def test_a_load_that_grows() -> None:
    pytest.importorskip("statsmodels", reason="the extra arima is not installed")
    draw = random.Random(1)
    now, slope = by_arima([10 + 0.5 * tick + draw.gauss(0, 0.2) for tick in range(40)], 6)
    assert now == pytest.approx(29.5, abs=1.5)
    assert slope == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize(("each", "least", "most"), [(0, 1.0, 1.05), (4, 1.08, 1.16)])
def test_what_it_says_of_arrivals(each: int, least: float, most: float) -> None:
    """A load that stays, and one that has four requests more every tick."""
    pytest.importorskip("statsmodels", reason="the extra arima is not installed")
    draw, arrivals = random.Random(2), Arrivals(5.0)
    for tick in range(48):
        arrivals.add([0.01] * max(0, round(200 + each * tick + draw.gauss(0, 3))), 0)
    assert least <= arrivals.growth(60.0, "arima") <= most
