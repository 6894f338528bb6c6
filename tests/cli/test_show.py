"""How answers look on a terminal."""

import random

import msgspec

from dynamod.cli.show import decision
from dynamod.message.discovery import Instance
from dynamod.router.router import Prompt, Router, RouterSettings


def shown(workers: int) -> str:
    router = Router("m", 16, RouterSettings("kv", busy_prefill=0), random.Random(0), lambda: 1.0, lambda: 1.5e9)
    live = tuple(Instance("n", "c", "e", number, {}) for number in range(workers))
    for number in range(20):
        router.state.active.start(number, number, (), 9, 0.0)
    made = router.decide(Prompt("r", 40), live)
    record = msgspec.to_builtins(made)
    for one in record["candidates"]:
        one["process"] = f"worker.{one['instance']}"
    return decision({**record, "overlap": 0, "regret": 0})


def test_a_decision_among_thousands_shows_the_best_and_counts_the_others() -> None:
    lines = shown(2020).split("\n")
    assert "and 1,984 more" in lines
    assert sum("worker." in line for line in lines) == 16
    assert "left out: 0, busy: 9 prompt tokens to compute" in lines
    assert lines[-1] == "left out: 4 more"


def test_a_decision_among_few_shows_all() -> None:
    assert " more" not in shown(24).replace("left out: 4 more", "")
