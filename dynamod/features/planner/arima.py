"""How a load continues, by an ARIMA model. It needs the extra `arima` (statsmodels)."""

import os
import warnings
from collections.abc import Sequence
from typing import Any

ORDERS = ((1, 1, 0), (2, 1, 0), (3, 1, 0))
"""Of the models that are tried: the one with the least information criterion (AIC) is taken.

All have a drift. None has a moving average, for which a fit takes ten times as long (0.1 s each).
"""

FEWEST = 8
"""Values for which a model is fitted."""


def prepare() -> Any:
    """The class of models. The first import takes seconds."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads that wait for work take ten times the CPU of a fit
    from statsmodels.tsa.arima.model import ARIMA

    return ARIMA


def by_arima(values: Sequence[float], steps: int) -> tuple[float, float]:
    """The last value as the model has it, and by how much a value changes per step, over `steps` of them."""
    if len(values) < FEWEST or max(values) == min(values):
        return values[-1], 0.0
    model = prepare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that the differences are fitted
        fits = [model(list(values), order=order, trend="t").fit(method="burg") for order in ORDERS]
        best = min(fits, key=lambda fit: fit.aic)
        now, later = float(best.fittedvalues[-1]), float(best.forecast(steps)[-1])
    return now, (later - now) / steps
