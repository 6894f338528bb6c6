"""How statistics structs tell counters from gauges."""

from typing import Annotated

import msgspec

Total = Annotated[int, msgspec.Meta(extra={"metric": "counter"})]
"""A field of a statistics struct that only grows while the process lives: a counter, all other numbers are gauges."""
