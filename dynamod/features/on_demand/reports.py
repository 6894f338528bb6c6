"""The models on demand as endpoints and metrics show them."""

from collections.abc import Callable

import msgspec

from .core import OnDemand
from .state import Model


class ModelReport(msgspec.Struct, frozen=True):
    """One model as `/running` shows it. `seconds`: in this state. `load_seconds`: of the last load. `memory`: bytes.

    `expires_in`: seconds until it is unloaded, without a further request; null: it stays.
    """

    model: str
    state: str
    seconds: float
    running: int
    waiting: int
    load_seconds: float | None = None
    memory: int = 0
    error: str = ""
    expires_in: float | None = None


class ModelReports:
    """Reads the decision. `now`: its clock."""

    def __init__(self, core: OnDemand, now: Callable[[], float]) -> None:
        self._core, self._now = core, now

    def all(self) -> list[ModelReport]:
        """All models, as they are configured."""
        return [self.of(name) for name in self._core.models]

    def of(self, name: str) -> ModelReport:
        """One model."""
        one = self._core.models[name]
        return ModelReport(
            name,
            one.state,
            round(self._now() - one.since, 3),
            len(one.running),
            len(one.waiting),
            one.took and round(one.took, 3),
            one.memory,
            one.last_error,
            self._expires_in(one),
        )

    def _expires_in(self, one: Model) -> float | None:
        if one.state != "ready" or one.keep is None:
            return None
        idle = 0.0 if one.busy else self._now() - one.idle_since
        return round(max(0.0, one.keep - idle), 3)

    def estimate(self, model: str) -> float:
        """Seconds until the model may be ready."""
        return self._core.estimate(self._now(), model)
