"""How a load goes on, by an ARIMA model. It needs the extra `arima` (statsmodels)."""

import warnings
from collections.abc import Sequence

ORDERS = ((0, 1, 1), (1, 1, 1), (0, 2, 2), (1, 2, 1))
"""Of the models that are tried: the one with the least information criterion (AIC) is taken."""

FEWEST = 8
"""Values for which a model is fitted."""


def by_arima(values: Sequence[float], steps: int) -> tuple[float, float]:
    """The last value as the model has it, and by how much a value changes per step, over `steps` of them."""
    if len(values) < FEWEST or max(values) == min(values):
        return values[-1], 0.0
    from statsmodels.tsa.arima.model import ARIMA  # it takes a second, and few ask for it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about starting values, and fits that have not converged
        fits = [ARIMA(list(values), order=order).fit() for order in ORDERS]
        best = min(fits, key=lambda fit: fit.aic)
        now, later = float(best.fittedvalues[-1]), float(best.forecast(steps)[-1])
    return now, (later - now) / steps
