"""How many requests begin in one turn of the loop."""

import asyncio

import pytest

from dynamod.http import turns
from dynamod.http.outlet import Outlets
from dynamod.http.turns import Turns


class Clock:
    """What the module reads instead of the time."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(turns, "perf_counter", found)
    return found


class Requests:
    """`begun`: a list of numbers for each turn of the loop."""

    def __init__(self, clock: Clock, cost: float, others: float = 0.0) -> None:
        self.turns, self.clock, self.cost, self.others = Turns(Outlets()), clock, cost, others
        self.begun: list[list[int]] = [[]]

    async def one(self, number: int) -> None:
        if (turn := self.turns.begin()) is not None:
            await turn
        self.clock.now += self.cost
        self.begun[-1].append(number)

    async def run(self, count: int, leave: tuple[int, ...] = ()) -> list[list[int]]:
        tasks = [asyncio.create_task(self.one(number)) for number in range(count)]
        for number in leave:
            asyncio.get_running_loop().call_soon(tasks[number].cancel)
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            self.clock.now += self.others
            self.begun.append([])
        return [turn for turn in self.begun if turn]


async def test_a_few_begin_in_each_turn_in_order(clock: Clock) -> None:
    begun = await Requests(clock, turns.TURN / 4.5).run(40)
    assert [number for turn in begun for number in turn] == list(range(40))
    assert {len(turn) for turn in begun} == {4}


async def test_cheap_requests_are_many_and_dear_ones_come_alone(clock: Clock) -> None:
    cheap = await Requests(clock, turns.TURN / 100.5).run(1000)
    assert [len(turn) for turn in cheap[1:3]] == [100, 100]
    dear = await Requests(clock, turns.TURN * 3).run(12)
    assert [len(turn) for turn in dear[1:]] == [1] * 8


async def test_a_client_that_has_left_takes_no_place(clock: Clock) -> None:
    begun = await Requests(clock, turns.TURN / 4.5).run(12, leave=(5, 6, 7, 8, 9))
    assert [number for turn in begun for number in turn] == [0, 1, 2, 3, 4, 10, 11]
    assert [len(turn) for turn in begun] == [4, 3]


async def test_nobody_waits_when_requests_come_one_after_the_other(clock: Clock) -> None:
    one = Turns(Outlets())
    for _ in range(20):
        assert one.begin() is None
        clock.now += turns.TURN / 2
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_requests_that_wait_get_two_thirds_of_a_busy_loop(clock: Clock) -> None:
    begun = await Requests(clock, turns.TURN / 4.55, others=turns.TURN * 5).run(200)
    assert [number for turn in begun for number in turn] == list(range(200))
    assert {len(turn) for turn in begun[2:-1]} == {45}
