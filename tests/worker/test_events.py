"""What a worker tells those who read its feed."""

import asyncio
import itertools
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from dynamod.actor import System
from dynamod.actor.testing import run, virtual
from dynamod.engine.base import EngineOptions
from dynamod.engine.echo import DELAY, EchoCore
from dynamod.ingress.subscriptions import SILENCE
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.ingress import Failed, Frame
from dynamod.message.kv_events import (
    Cleared,
    Load,
    PrefillCompleted,
    Removed,
    RequestFinished,
    RequestStarted,
    Snapshot,
    Stored,
)
from dynamod.message.worker import Subscribe
from dynamod.router.index import BlockIndex
from dynamod.transport.outbox import WINDOW, Outbox
from dynamod.transport.unix import UnixServer, UnixTransport
from dynamod.worker.events import BACKLOG, EventPublisher
from dynamod.worker.subscriptions import KEEP_ALIVE


class Core(EchoCore):
    """echo_core without a model's files."""

    async def start(self) -> None:
        self._card = ModelCard(self.options.name)
        await super(EchoCore, self).start()


def hashes(ids: list[int]) -> tuple[int, ...]:
    return tuple(block_hashes(tokens.pack(ids), 4))


def flat(feed: Any) -> list[Any]:
    return [item for items in feed.news for item in items]


def kinds(feed: Any, *wanted: type) -> list[Any]:
    return [item for item in flat(feed) if isinstance(item, wanted)]


def index_of(feed: Any) -> BlockIndex:
    """What a router knows that has read the feed."""
    index = BlockIndex()
    for item in flat(feed):
        if isinstance(item, Stored | Removed | Cleared | Snapshot):
            assert index.apply(1, item)
    assert index.statistics().orphans == 0
    return index


def held(feed: Any) -> set[int]:
    names: set[int] = set()
    for _, holds in index_of(feed).dump():
        assert holds.blocks == holds.hashes  # the names of blocks are their sequence hashes, and so they say
        names |= set(holds.blocks)
    return names


def pool_of(house: Any) -> set[int]:
    names = house.workers[-1]._engine.ranks[0].scheduler.pool.names()
    assert len(names) == len(set(names))
    return set(names)


@virtual
async def test_it_begins_with_how_things_stand(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        done = await house.ask(words.generate(list(range(10)), max_tokens=3)).wait()
        feed = house.subscribe()
        await asyncio.sleep(0)
        assert feed.accepted
        names = hashes([*range(10), *done.ids])
        [(cleared, holds, load)] = feed.news
        assert cleared == Cleared()
        assert isinstance(holds, Snapshot)
        assert set(holds.blocks) == set(names)
        assert load == Load(0, 0, 0, 64, 0.0, prefill_ms=0.062)


@virtual
async def test_blocks_come_with_the_hashes_of_their_tokens(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, num_gpu_blocks=6)
        feed = house.subscribe()
        answer = await house.ask(words.generate(list(range(10)), max_tokens=10)).wait()
        names = hashes([*range(10), *answer.ids])
        stored = kinds(feed, Stored)
        assert [(item.parent, item.blocks) for item in stored] == [
            (None, names[:2]),
            (names[1], names[2:3]),
            (names[2], names[3:4]),
            (names[3], names[4:5]),
        ]
        assert held(feed) == set(names) == pool_of(house)
        await house.ask(words.generate([7] * 8, max_tokens=1)).wait()
        assert [set(item.blocks) for item in kinds(feed, Removed)] == [{names[4]}, {names[3]}]
        assert held(feed) == pool_of(house)


@virtual
async def test_what_happens_in_one_turn_is_one_item(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        feed = house.subscribe(house.stranger())
        await asyncio.sleep(0.1)
        before = len(feed.news)
        for name in range(3):
            house.ask(words.generate([name] * 8, max_tokens=1))
        await asyncio.sleep(0.001)
        came = feed.news[before:]
        assert [type(item) for items in came for item in items] == [RequestStarted] * 3 + [Stored] * 3
        assert len(came) <= 2


@virtual
async def test_requests_are_told_to_the_other_readers_only(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        stranger = house.stranger()
        own, other = house.subscribe(), house.subscribe(stranger)
        first = await house.ask(words.generate([1] * 10, max_tokens=4)).wait()
        second = await house.ask(words.generate([1] * 10, [5] * 4, max_tokens=9), stranger).wait()
        await asyncio.sleep(0)
        assert len(first.ids) == 4
        assert len(second.ids) == 5
        request = (RequestStarted, PrefillCompleted, RequestFinished)
        assert kinds(other, *request) == [
            RequestStarted(1, hashes([1] * 10), 10),
            PrefillCompleted(1),
            RequestFinished(1),
        ]
        # its prior output is prompt for the one who has to compute it; two blocks were there
        assert kinds(own, *request) == [
            RequestStarted(2, hashes([1] * 10 + [5] * 4), 14 - 8),
            PrefillCompleted(2),
            RequestFinished(2),
        ]
        assert held(own) == held(other) == pool_of(house)


@virtual
async def test_computed_comes_with_the_first_token_and_ended_with_a_cancel(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, max_num_seqs=1)
        feed = house.subscribe(house.stranger())
        answers = [house.ask(words.generate([name] * 8, max_tokens=500)) for name in (1, 2)]
        await asyncio.sleep(0.01)
        assert [type(item) for item in kinds(feed, RequestStarted, PrefillCompleted, RequestFinished)] == [
            RequestStarted,
            RequestStarted,
        ]
        await asyncio.sleep(0.01)
        assert kinds(feed, PrefillCompleted) == [PrefillCompleted(1)]
        answers[1].stream.cancel()
        await asyncio.sleep(0)
        assert kinds(feed, RequestFinished) == [RequestFinished(2)]
        refused = await house.ask(words.generate([1] * 1000, max_tokens=1)).wait()
        await asyncio.sleep(0)
        assert refused.error is not None
        assert kinds(feed, RequestFinished) == [RequestFinished(2), RequestFinished(3)]
        answers[0].stream.cancel()


@virtual
async def test_a_late_reader_hears_of_the_open_requests_of_others(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system, max_num_seqs=1)
        answers = [house.ask(words.generate([name] * 8, max_tokens=40)) for name in (1, 2)]
        await asyncio.sleep(0.1)
        own, other = house.subscribe(), house.subscribe(house.stranger())
        await asyncio.sleep(0)
        began = [RequestStarted(1, hashes([1] * 8), 8), PrefillCompleted(1), RequestStarted(2, hashes([2] * 8), 8)]
        assert kinds(other, RequestStarted, PrefillCompleted, RequestFinished) == began
        assert kinds(own, RequestStarted, PrefillCompleted, RequestFinished) == []
        assert held(own) == held(other) == pool_of(house)
        for answer in answers:
            await answer.wait()
        await asyncio.sleep(0)
        assert kinds(other, RequestFinished) == [RequestFinished(1), RequestFinished(2)]


@virtual
async def test_load_is_told_when_it_changes_at_most_four_times_a_second(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        feed = house.subscribe()
        await asyncio.sleep(1)
        idle = len(kinds(feed, Load))
        assert idle == 2
        begin = asyncio.get_running_loop().time()
        answer = await house.ask(words.generate([1] * 20, max_tokens=200)).wait()
        took = asyncio.get_running_loop().time() - begin
        loads = kinds(feed, Load)[idle:]
        assert 4 <= len(loads) <= took * 4 + 1
        assert (loads[0].running, loads[0].total_blocks) == (1, 64)
        assert loads[0].active_blocks < loads[-1].active_blocks
        await asyncio.sleep(1)
        assert len(answer.ids) == 200
        assert kinds(feed, Load)[-1] == Load(0, 0, 0, 64, 0.0, prefill_ms=0.062)
        assert len(kinds(feed, Load)) <= idle + took * 4 + 2


@virtual
async def test_a_feed_is_never_silent_for_long(words: Any) -> None:
    """Readers take a silent feed for a broken one, so an idle worker says its load every two seconds."""
    async with System() as system:
        house = await words.mocker(system)
        feed = house.subscribe()
        await asyncio.sleep(60)
        times = feed.times[1:]  # behind Accepted
        assert max(late - early for early, late in itertools.pairwise(times)) <= KEEP_ALIVE < SILENCE / 2
        assert 30 <= len(kinds(feed, Load)) <= 33


@virtual
async def test_a_feed_is_no_request(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        feed, leaver = house.subscribe(), house.subscribe(house.stranger())
        await asyncio.sleep(0)
        statistics = house.statistics
        assert (statistics.accepted, statistics.open, statistics.feeds) == (0, 0, 2)
        leaver.stream.cancel()
        assert house.statistics.feeds == 1
        assert house.statistics.cancelled == 0
        before = asyncio.get_running_loop().time()
        await system.root.stop_child("worker", drain=True, timeout=60)
        assert asyncio.get_running_loop().time() == before
        assert feed.error is not None
        assert (feed.error.error, feed.error.retry) == ("EngineFailed", True)
        assert leaver.error is None


@virtual
async def test_nobody_looks_at_the_load_when_nobody_reads(words: Any) -> None:
    async with System() as system:
        house = await words.mocker(system)
        feed = house.subscribe()
        await asyncio.sleep(1)
        feed.stream.cancel()
        await asyncio.sleep(1)
        assert not house.workers[-1]._subscriptions._watching
        again = house.subscribe()
        await asyncio.sleep(1)
        assert len(kinds(again, Load)) == 2


@virtual
async def test_an_engine_without_kv_events_has_a_feed_too(words: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DELAY, "100")
        async with System() as system:
            house = await words.House(system, Core, EngineOptions("m")).start()
            feed = house.subscribe(house.stranger())
            await house.ask(words.generate([1, 2, 3, 4, 5])).wait()
            await asyncio.sleep(1)
    assert feed.news[0] == (Cleared(), Load(0, 0, 0, 0, 0.0))
    assert kinds(feed, RequestStarted, PrefillCompleted, RequestFinished) == [
        RequestStarted(1, (), 0),
        RequestFinished(1),
    ]
    assert Load(1, 0, 0, 0, 0.0) in flat(feed)


async def test_over_sockets_readers_of_two_processes(words: Any, tmp_path: Any) -> None:
    async with System() as system, asyncio.TaskGroup() as tasks:
        house = await words.mocker(system, speedup_ratio=0)
        office = UnixServer(str(tmp_path / "s"), house._endpoints.receive)
        await office.start()
        instance = msgspec.structs.replace(words.instance, transport={"unix": office.path})
        posts = [UnixTransport(lambda work, _name: tasks.create_task(work)) for _ in range(2)]
        feeds = [words.Answer() for _ in posts]
        for transport, feed in zip(posts, feeds, strict=True):
            feed.stream = transport.open(instance, Subscribe("feed"), feed)
        await words.until(lambda: all(feed.news for feed in feeds))
        answer = words.Answer()
        answer.stream = posts[0].open(instance, words.generate([1] * 10, max_tokens=8), answer)
        await answer.wait()
        await words.until(lambda: kinds(feeds[1], RequestFinished) and len(kinds(feeds[0], Stored)) == 3)
        assert kinds(feeds[0], RequestStarted, PrefillCompleted, RequestFinished) == []
        assert kinds(feeds[1], RequestStarted, PrefillCompleted, RequestFinished) == [
            RequestStarted(1, hashes([1] * 10), 10),
            PrefillCompleted(1),
            RequestFinished(1),
        ]
        assert held(feeds[0]) == held(feeds[1]) == pool_of(house)
        feeds[0].stream.cancel()
        await words.until(lambda: house.statistics.feeds == 1)
        feeds[1].stream.cancel()
        for transport in posts:
            await transport.close()
        await office.close()


@given(
    data=st.data(),
    blocks=st.integers(6, 24),
    mode=st.sampled_from(["lifo", "fifo"]),
    budget=st.integers(3, 40),
)
def test_an_index_knows_what_the_pool_holds(words: Any, data: Any, blocks: int, mode: str, budget: int) -> None:
    """Random requests and leavers. Whoever reads the feed, from the start or from later on, knows the pool."""

    async def main() -> None:
        async with System() as system:
            house = await words.mocker(
                system, num_gpu_blocks=blocks, preemption_mode=mode, max_num_batched_tokens=budget, max_num_seqs=4
            )
            feeds = [house.subscribe()]
            answers = []
            for _ in range(data.draw(st.integers(1, 12))):
                what = data.draw(st.sampled_from(["ask", "ask", "ask", "leave", "subscribe", "wait", "rest"]))
                if what == "ask":
                    prompt = data.draw(st.integers(0, 2))
                    ids = [prompt] * data.draw(st.integers(1, 20)) + data.draw(st.lists(st.integers(0, 1), max_size=6))
                    prior = data.draw(st.lists(st.integers(0, 1), max_size=5))
                    limit = data.draw(st.integers(1, 30))
                    seed = data.draw(st.integers(0, 1))
                    answers.append(house.ask(words.generate(ids, prior, seed, max_tokens=limit)))
                elif what == "leave" and answers:
                    answers.pop(data.draw(st.integers(0, len(answers) - 1))).stream.cancel()
                elif what == "subscribe":
                    feeds.append(house.subscribe(house.stranger()))
                elif what == "wait":
                    await asyncio.sleep(data.draw(st.floats(0, 0.3)))
                else:
                    for answer in answers:
                        await answer.wait()
                await asyncio.sleep(0.0001)
                for feed in feeds:
                    assert held(feed) == pool_of(house)
            for answer in answers:
                await answer.wait()
            await asyncio.sleep(1)
            late = house.subscribe()
            await asyncio.sleep(0)
            for feed in [*feeds, late]:
                assert held(feed) == pool_of(house)
            assert kinds(feeds[0], Load)[-1].active_blocks == 0

    run(main())


async def test_a_reader_that_does_not_read_is_dropped() -> None:
    """It may subscribe again; until then nothing grows."""
    sent: list[bytes] = []
    outbox, feeds = Outbox(sent.append), EventPublisher()
    feeds.subscribe(outbox.reply(1), (Cleared(),))
    for number in range(WINDOW + BACKLOG + 10):
        feeds.publish(RequestFinished(number))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert len(feeds) == 0
    assert len(sent) == WINDOW
    assert outbox.backlog(1) == BACKLOG
    outbox.credit(WINDOW)
    last = msgspec.msgpack.decode(sent[-1], type=Frame).deltas[-1]
    assert isinstance(last, Failed)
    assert last.retry
