"""Workers that go between the pools of a planner: from prompts to answers, and back, without a start."""

from dynamod.extension.feature import Feature


def _orders() -> object:
    from .shared_pools import pool_orders

    return pool_orders


FEATURE = Feature(
    "role_switch",
    "a planner has workers change between prefill and decode, where that is as good as a start",
    requires=("planner", "prefill"),
    extends={"planner": _orders},
)
