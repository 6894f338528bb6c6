"""A time that is measured again and again, and forgotten when it has not been for a while."""

import asyncio
from collections.abc import Callable


class Measured:
    """`told` gets the mean in seconds, in which the last times count most, and 0.0 `forget` seconds after the last."""

    def __init__(self, forget: float, told: Callable[[float], object]) -> None:
        self._forget, self._told = forget, told
        self._mean = 0.0
        self._forgets: asyncio.TimerHandle | None = None

    def add(self, seconds: float) -> None:
        """It has taken so long."""
        before = self._mean or seconds
        self._set(before + (seconds - before) / 4)
        self.close()
        self._forgets = asyncio.get_running_loop().call_later(self._forget, self._set, 0.0)

    def close(self) -> None:
        """Forget nothing any more."""
        if self._forgets is not None:
            self._forgets.cancel()

    def _set(self, mean: float) -> None:
        self._mean = mean
        self._told(mean)
