"""EventSubscriptions of workers: what begins anew, what is silent, and who is followed."""

import asyncio
from typing import Any

from dynamod.actor.testing import virtual
from dynamod.ingress.subscriptions import LOOK, RETRY, SILENCE, EventSubscriptions
from dynamod.message.discovery import Instance
from dynamod.message.ingress import Accepted, Failed, Items
from dynamod.message.kv_events import Cleared, Load, pack

ONE, TWO = (Instance("n", "c", "e", number, {}) for number in (1, 2))
LOAD = Load(0, 0, 0, 9, 0.0)


class Stream:
    """A subscription as the worker's side of a post sees it."""

    def __init__(self, instance: Instance, sink: Any) -> None:
        self.instance, self.sink = instance, sink
        self.cancelled = False
        self.said = 0

    def cancel(self) -> None:
        self.cancelled = True

    def say(self, *words: Any) -> None:
        self.sink.delta(Items(1, self.said, (pack(words),)))
        self.said += 1


class House:
    """EventSubscriptions over a post that a test speaks for, looked at twice a second as the processor does."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.streams: list[Stream] = []
        self.news: list[tuple[Any, tuple[Any, ...], bool]] = []
        now = asyncio.get_running_loop().time
        self.feeds = EventSubscriptions(
            self,  # type: ignore[arg-type]
            lambda work, name: tasks.create_task(work, name=name),
            now,
            lambda key, items, anew: self.news.append((key, tuple(items), anew)),
        )

    def open(self, instance: Instance, request: object, sink: object) -> Stream:
        self.streams.append(Stream(instance, sink))
        return self.streams[-1]

    async def look(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            await asyncio.sleep(0.5)
            self.feeds.look()


@virtual
async def test_the_first_words_of_each_feed_begin_anew() -> None:
    async with asyncio.TaskGroup() as tasks:
        house = House(tasks)
        house.feeds.follow("k", ONE)
        first = house.streams[0]
        first.sink.delta(Accepted(1))
        first.say(Cleared(), LOAD)
        first.say(LOAD)
        first.sink.delta(Items(1, 1, (pack((LOAD,)), pack((Cleared(),)))))  # of which one is known already
        first.sink.delta(Failed(1, "EngineFailed", "the worker went", retry=True))
        await asyncio.sleep(RETRY * 2)
        house.streams[1].say(Cleared())
        assert [(len(items), anew) for _, items, anew in house.news] == [
            (2, True),
            (1, False),
            (1, False),
            (1, True),
        ]
        house.feeds.close()
        house.streams[1].say(LOAD)
        assert len(house.news) == 4


@virtual
async def test_a_silent_feed_is_opened_again_and_others_are_not() -> None:
    async with asyncio.TaskGroup() as tasks:
        house = House(tasks)
        house.feeds.follow("talks", ONE)
        house.feeds.follow("silent", TWO)  # its Subscribe is lost
        for _ in range(4):
            await house.look(2)
            house.streams[0].say(LOAD)
        assert [stream.instance for stream in house.streams] == [ONE, TWO, TWO]
        assert [stream.cancelled for stream in house.streams] == [False, True, False]
        house.streams[1].say(LOAD)
        assert all(key == "talks" for key, _, _ in house.news), "the old feed is heard no more"
        house.streams[2].say(LOAD)
        assert house.news[-1] == ("silent", (LOAD,), True)
        await house.look(SILENCE + LOOK + RETRY + 1)  # now its last words are lost
        assert [stream.instance for stream in house.streams[3:]].count(TWO) == 1
        house.feeds.close()


@virtual
async def test_a_way_that_is_slow_is_given_more_time() -> None:
    """Else its answer would come for ever to a subscription that has just been given up."""
    async with asyncio.TaskGroup() as tasks:
        house = House(tasks)
        house.feeds.follow("k", ONE)
        await house.look(120)
        opened = len(house.streams)
        assert opened == 7  # at 0, 6, 17, 38, 59, 80, 101, each a look and a pause later
        house.streams[-1].say(LOAD)
        house.streams[-1].sink.lost("the connection broke")
        await house.look(RETRY * 2 + SILENCE + 2 * LOOK + RETRY)
        assert len(house.streams) == opened + 2, "one that was heard is missed soon"
        house.feeds.close()


@virtual
async def test_who_has_not_listened_judges_nobody() -> None:
    """A process that was stopped for a minute has the words of that minute still before it."""
    async with asyncio.TaskGroup() as tasks:
        house = House(tasks)
        house.feeds.follow("k", ONE)
        await house.look(2)
        await asyncio.sleep(60)
        await house.look(SILENCE - LOOK)
        assert len(house.streams) == 1
        await house.look(2 * LOOK + 2)
        assert len(house.streams) == 2
        house.feeds.close()


@virtual
async def test_who_is_dropped_is_not_asked_again() -> None:
    async with asyncio.TaskGroup() as tasks:
        house = House(tasks)
        house.feeds.follow("k", ONE)
        house.feeds.follow("k", TWO)
        assert len(house.streams) == 1, "a changed record opens nothing"
        house.streams[0].sink.lost("the connection broke")
        await asyncio.sleep(RETRY * 2)
        assert house.streams[1].instance is TWO, "but is where it is asked again"
        house.streams[1].sink.lost("the connection broke")
        house.feeds.drop("k")
        house.feeds.drop("k")
        await asyncio.sleep(60)
        assert len(house.streams) == 2
