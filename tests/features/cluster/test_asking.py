"""One exchange with a node, and all nodes at once, in virtual time."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dynamod.actor.testing import run
from dynamod.features.cluster.asking import GREETING_S, LOOK_S, Heard, Unreached, ask_all, exchange
from dynamod.features.cluster.messages import Order
from dynamod.features.cluster.nodes import KnownNode

from .conftest import FarDaemon, record

ORDER = Order(command="ps", sender="one")
PLACE = KnownNode("two", "m", 7, record()).instance("nats")


def now() -> float:
    return asyncio.get_running_loop().time()


async def ask(far: FarDaemon, **more: Any) -> Heard:
    return await exchange(far, PLACE, ORDER, clock=now, **more)


def test_greeting_and_answer() -> None:
    async def main() -> None:
        far = FarDaemon(answer=[1, 2], greets=0.2, answers=1.5)
        heard = await ask(far)
        assert (heard.outcome.answer, heard.greeting.version) == ([1, 2], "0.2.0")
        assert heard.seconds == pytest.approx(0.2)
        assert far.orders == [ORDER]

    run(main())


@pytest.mark.parametrize(
    ("far", "seconds", "why"),
    [
        (FarDaemon(greets=None), GREETING_S, "does not answer within 0.8 s"),
        (FarDaemon(greets=GREETING_S + 0.01), GREETING_S, "does not answer within 0.8 s"),
        (FarDaemon(answers=None), LOOK_S, "no answer within 3 s"),
        (FarDaemon(lost="the process is gone"), 0.0, "the process is gone"),
        (FarDaemon(greeting={"node": 7}), 0.0, "Expected `str`"),
        (FarDaemon(outcome={"error": "no"}), 0.0, "Expected "),
    ],
)
def test_each_sign_has_a_deadline(far: FarDaemon, seconds: float, why: str) -> None:
    async def main() -> None:
        begun = now()
        with pytest.raises(Unreached, match=why):
            await ask(far)
        assert now() - begun == pytest.approx(seconds)
        assert far.cancelled == 1, "the other node need not work any more"

    run(main())


def test_a_command_that_takes_longer_is_waited_for() -> None:
    async def main() -> None:
        assert (await ask(FarDaemon(answer="done", answers=500.0), outcome_s=600.0)).outcome.answer == "done"

    run(main())


def test_the_clock_of_another_node_is_compared_at_the_middle_of_the_round_trip() -> None:
    async def main() -> None:
        far = FarDaemon(greets=0.4)
        far.clock = lambda: now() - 0.2 + 5.0  # read halfway, and 5 s ahead
        heard = await ask(far)
        assert heard.clock_ms == pytest.approx(5000.0)
        assert heard.seconds == pytest.approx(0.4)

    run(main())


def test_fields_of_a_newer_release_are_skipped() -> None:
    async def main() -> None:
        greeting = {"node": "two", "version": "9.0.0", "protocol": 9, "mood": "fine"}
        heard = await ask(FarDaemon(greeting=greeting, outcome={"answer": 1, "error": None, "later": [1]}))
        assert (heard.greeting.protocol, heard.outcome.answer) == (9, 1)

    run(main())


def test_sixteen_nodes_are_asked_at_once() -> None:
    """Frozen, lost and late ones cost no other node its answer, and all of them together less than a second."""
    frozen, gone = {3, 7, 11}, {5}

    def far(number: int) -> FarDaemon:
        if number in gone:
            return FarDaemon(lost="the process is gone")
        return FarDaemon(answer=number, greets=None if number in frozen else 0.05 * (number % 4))

    async def main() -> None:
        nodes: Sequence[KnownNode] = [KnownNode(f"n{number}", "m", number, record()) for number in range(16)]

        async def one(node: KnownNode) -> object:
            return (await ask(far(node.lease))).outcome.answer

        begun = now()
        found = await ask_all(nodes, one, lambda node, why: f"{node.name}: {why}")
        assert now() - begun == pytest.approx(GREETING_S)
        for number, answer in enumerate(found):
            if number in frozen:
                assert answer == f"n{number}: does not answer within 0.8 s"
            else:
                assert answer == (f"n{number}: the process is gone" if number in gone else number)

    run(main())
