"""How long an iteration of a real engine takes, in milliseconds: the two sets of polynomials of NVIDIA Dynamo's mocker.

Sources: NVIDIA Dynamo's `mocker/scheduler.rs` (2025) and `mocker/perf_model.rs` (later).
"""

from dataclasses import dataclass
from typing import Literal, get_args

TimingName = Literal["2025", "later"]
NAMES: tuple[str, ...] = get_args(TimingName)


@dataclass(frozen=True, slots=True)
class Timing:
    """Coefficients from the highest power down. Prefill: of new tokens. Decode: of the share of the KV cache in use."""

    prefill: tuple[float, float, float]
    decode: tuple[float, float, float]

    def prefill_ms(self, tokens: int) -> float:
        """Compute `tokens` prompt tokens of one sequence."""
        a, b, c = self.prefill
        return (a * tokens + b) * tokens + c

    def decode_ms(self, used: float) -> float:
        """One token for every running sequence, with `used` (0 to 1) of the KV cache in use."""
        a, b, c = self.decode
        return max(0.0, (a * used + b) * used + c)


TIMINGS: dict[str, Timing] = {
    "2025": Timing((1.25e-6, 7.41e-2, 26.2), (-5.47, 43.88, 19.44)),
    "later": Timing((4.209989e-07, 1.518344e-02, 16.50142), (-25.74, 54.01, 5.74)),
}
