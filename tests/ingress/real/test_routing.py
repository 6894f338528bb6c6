"""Routing with the real processor and real feeds: who is busy, who waits, what is told to others."""

import asyncio
from typing import Any

import msgspec
import pytest

from dynamod.ingress.dispatcher import ModelServed
from dynamod.ingress.processor import Processor, ProcessorBackend, ProcessorOptions
from dynamod.message.errors import BadRequest, Overloaded
from dynamod.router.router import RouterSettings

LONG = "A prompt of some length, so that it has full blocks to be found again. " * 3


async def started(house: Any, until: Any, workers: int, engine: Any, **settings: Any) -> list[Any]:
    await house.start(routing=RouterSettings(**settings))
    members = [await house.worker(engine) for _ in range(workers)]
    await until(lambda: "sample" in house.processor.cards)
    return members


def router(house: Any) -> Any:
    return house.processor.dispatch.routers["sample", ""]


async def test_what_was_sent_is_remembered_where_engines_tell_nothing(house, until, words) -> None:
    members = await started(house, until, 3, words.Seen, mode="kv")
    for _ in range(5):
        await (await house.ask(text=LONG, max_tokens=1)).answers()
    assert sorted(len(member.engine.requests) for member in members) == [0, 0, 5]
    assert router(house).statistics().overlap > 0


async def test_the_account_is_closed_whatever_way_a_request_ends(house, until, words) -> None:
    (member,) = await started(house, until, 1, words.Manual, mode="kv")
    number, book = member.instance.instance_id, router(house).state.active
    requests = [await house.ask(text="x") for _ in range(4)]
    await until(lambda: len(member.engine.replies) == 4)
    assert book.of(number).requests == 4
    done, failed, _cancelled, _ = member.engine.replies
    done.text("a", 1, "stop", 1)
    failed.failed("EngineFailed", "broken")
    requests[2].run.cancel()
    await until(lambda: book.of(number).requests == 1)
    await house.die(member)
    await until(lambda: len(book) == 0)
    await requests[3].wait()
    assert requests[3].error is not None


async def test_busy_workers_get_nothing_and_the_request_is_refused(house, until, words) -> None:
    members = await started(house, until, 2, words.Manual, mode="kv", busy_prefill=0)
    router(house).state.active.start("a", members[0].instance.instance_id, (), 5, 0.0)
    await house.ask(text="x")
    await until(lambda: len(members[1].engine.replies) == 1)
    router(house).state.active.start("b", members[1].instance.instance_id, (), 5, 0.0)
    client = await (await house.ask(text="x")).wait()
    assert isinstance(client.error, Overloaded)
    assert client.error.retry_after
    record = house.processor.dispatch.decisions.of("job3")
    assert "busy: 5 prompt tokens" in record[0].excluded[0][1]


async def test_requests_wait_in_the_order_of_their_priority(house, until, words) -> None:
    (member,) = await started(house, until, 1, words.Manual, mode="kv", busy_prefill=0, queue_size=3)
    router(house).state.active.start("load", member.instance.instance_id, (), 5, 0.0)
    for priority in (0, 5, 0):
        await house.ask(text=f"p{priority}", nvext={"agent_hints": {"priority": priority}})
    full = await (await house.ask(text="x")).wait()
    assert isinstance(full.error, Overloaded)
    assert house.processor.dispatch.waiting(("sample", "")) == 3
    assert not member.engine.replies
    router(house).state.active.finish("load")
    house.processor.dispatch._load_fell(("sample", ""))
    await until(lambda: len(member.engine.replies) == 3)
    asked = [b"p5" in request.body for request in member.engine.requests]
    assert asked == [True, False, False]


async def test_who_leaves_the_queue_makes_room(house, until, words) -> None:
    (member,) = await started(house, until, 1, words.Manual, mode="kv", busy_prefill=0, queue_size=1)
    router(house).state.active.start("load", member.instance.instance_id, (), 5, 0.0)
    waiting = await house.ask(text="gone")
    await until(lambda: house.processor.dispatch.waiting(("sample", "")) == 1)
    waiting.run.cancel()
    await house.ask(text="stays")
    router(house).state.active.finish("load")
    house.processor.dispatch._load_fell(("sample", ""))
    await until(lambda: len(member.engine.replies) == 1)
    await asyncio.sleep(0.02)
    assert [b"stays" in request.body for request in member.engine.requests] == [True]


async def second_ingress(house: Any, until: Any, **settings: Any) -> Processor:
    """Another ingress process would look like this to the workers: its own post."""
    from dynamod.transport.unix import UnixTransport

    net = house.system.cell(house.system.ref("/net")).actor
    transport = UnixTransport(net.context.task)
    ref = house.system.start(
        "Other",
        lambda: Processor(house.view, transport, ProcessorOptions(routing=RouterSettings(**settings))),
        restart="temporary",
    )
    await house.system.ready(ref, timeout=5)
    other = house.system.cell(ref).actor
    await until(lambda: "sample" in other.cards)
    return other


async def test_ingress_processes_hear_of_each_others_requests(house, until, words) -> None:
    (member,) = await started(house, until, 1, words.Manual, mode="kv")
    number = member.instance.instance_id
    other = await second_ingress(house, until, mode="kv")
    await until(lambda: member.actor.statistics().feeds == 2)
    await house.ask(text="x")
    theirs = other.dispatch.routers["sample", ""]
    await until(lambda: theirs.state.active.of(number).requests == 1)
    assert router(house).state.active.of(number).requests == 1, "who sent it is not told again"
    member.engine.replies[0].text("a", 1, "stop", 1)
    await until(lambda: theirs.state.active.of(number).requests == 0)
    assert router(house).state.active.of(number).requests == 0


async def test_a_feed_that_breaks_is_opened_again(house, until, words) -> None:
    (member,) = await started(house, until, 1, words.Manual, mode="kv")
    await until(lambda: member.actor.statistics().feeds == 1)
    member.actor._subscriptions._events.close("for the test")
    assert member.actor.statistics().feeds == 0
    await until(lambda: member.actor.statistics().feeds == 1)
    known = router(house)
    await house.die(member)
    await until(lambda: not known.workers)


async def test_many_changes_of_one_turn_are_one_look(house, until, words, monkeypatch) -> None:
    members = await started(house, until, 3, words.Manual, mode="kv")
    dispatch = house.processor.dispatch
    await until(lambda: len(router(house).workers) == 3)
    looks: list[set[int]] = []
    fell = dispatch._load_fell
    monkeypatch.setattr(dispatch, "_load_fell", lambda key: (looks.append(router(house).workers), fell(key)))
    for member in members[:2]:
        house.leave(member)  # each is two changes
    assert not looks
    await asyncio.sleep(0)
    assert looks == [{members[2].instance.instance_id}]
    await until(lambda: [member.actor.statistics().feeds for member in members] == [0, 0, 1])


async def test_a_router_with_other_blocks_hears_all_anew(house, until, words) -> None:
    (member,) = await started(house, until, 1, words.Manual, mode="kv")
    await until(lambda: member.actor.statistics().feeds == 1)
    old = router(house)
    card = msgspec.structs.replace(house.processor.cards["sample"], kv_cache_block_size=old.block_size * 2)
    house.processor._dispatcher.send_nowait(ModelServed(card))
    await until(lambda: router(house) is not old)
    assert not old.workers
    await until(lambda: member.instance.instance_id in router(house).state.loads)
    assert member.actor.statistics().feeds == 1


@pytest.mark.parametrize("mode", ["round-robin", "random", "direct"])
async def test_modes_that_need_no_news_ask_for_none(house, until, words, mode) -> None:
    (member,) = await started(house, until, 1, words.Seen, mode=mode)
    await (await house.ask(text=LONG, max_tokens=1)).answers()
    assert member.actor.statistics().feeds == 0
    assert house.processor.dispatch.decisions.of("job2")[0].candidates[0].total == 0


async def test_an_instance_that_is_not_there_is_a_mistake_of_the_client(house, until, words) -> None:
    members = await started(house, until, 2, words.Seen)
    client = await house.ask(text="x", nvext={"backend_instance_id": members[1].instance.instance_id})
    await client.answers()
    with pytest.raises(BadRequest, match="12345") as caught:
        await house.ask(text="x", nvext={"backend_instance_id": 12345})
    assert caught.value.param == "nvext.backend_instance_id"


async def test_a_question_for_the_instance_generates_nothing(house, until, words) -> None:
    members = await started(house, until, 2, words.Seen, mode="kv")
    client = await house.ask(text=LONG, nvext={"annotations": ["query_instance_id"]})
    assert await client.answers() == [""]
    assert client.reasons == {0: "stop"}
    assert client.annotations["worker_instance_id"] in [member.instance.instance_id for member in members]
    assert len(client.annotations["token_data"]) == client.prompt_tokens
    assert not any(member.engine.requests for member in members)
    assert len(router(house).state.active) == 0


async def test_a_request_may_override_the_router(house, until, words) -> None:
    await started(house, until, 2, words.Seen, mode="kv")
    override = {"overlap_score_weight": 0.5, "router_temperature": 2.0}
    await (await house.ask(text=LONG, nvext={"router_config_override": override}, max_tokens=1)).answers()
    record = house.processor.dispatch.decisions.of("job3")[0]
    assert (record.overlap_weight, record.temperature) == (0.5, 2.0)
    assert "softmax" in record.rule


async def test_a_session_goes_where_it_was(house, until, words) -> None:
    members = await started(house, until, 4, words.Seen, mode="round-robin")
    for _ in range(6):
        await (await house.ask(text="x", prompt_cache_key="mine")).answers()
    assert sorted(len(member.engine.requests) for member in members) == [0, 0, 0, 6]


async def test_who_waits_and_is_sent_by_its_clock_is_sent_once(house, until, words) -> None:
    """The queue's clock may try again in the moment in which a worker gets free."""
    members = await started(house, until, 2, words.Manual, mode="kv", busy_prefill=0, queue_size=3)
    for number, member in enumerate(members):
        router(house).state.active.start(number, member.instance.instance_id, (), 5, 0.0)
    await house.ask(text="x")
    await until(lambda: house.processor.dispatch.waiting(("sample", "")) == 1)
    (inflight,) = house.processor.requests._open
    for number in range(2):
        router(house).state.active.finish(number)
    inflight.leave("its clock has passed")
    house.processor.dispatch._load_fell(("sample", ""))
    await until(lambda: sum(len(member.engine.replies) for member in members) == 1)
    await asyncio.sleep(0.05)
    assert sum(len(member.engine.replies) for member in members) == 1
    assert len(router(house).state.active) == 1


async def test_a_hard_session_has_one_worker_for_all_ingress_processes(house, until, words) -> None:
    members = await started(house, until, 4, words.Seen, mode="session-affinity")
    other = await second_ingress(house, until, mode="session-affinity")
    ours, theirs = house.backend, ProcessorBackend(house.ref, other, house.view)

    async def homes() -> dict[str, set[int]]:
        """By session, which members have served it when both ingress processes are asked."""
        found: dict[str, set[int]] = {}
        for session in "abcdefgh":
            before = [len(member.engine.requests) for member in members]
            for backend in (ours, theirs):
                house.backend = backend
                await (await house.ask(text="x", prompt_cache_key=session)).answers()
            served = [len(member.engine.requests) for member in members]
            found[session] = {place for place in range(4) if served[place] > before[place]}
        return found

    first = await homes()
    assert {len(places) for places in first.values()} == {1}, "both ask the same worker"
    assert len(set.union(*first.values())) > 1
    (gone,) = first["a"]
    await house.die(members[gone])
    await until(lambda: all(len(one.dispatch.routers["sample", ""].workers) == 3 for one in (house.processor, other)))
    second = await homes()
    assert {len(places) for places in second.values()} == {1}
    assert gone not in set.union(*second.values())
    moved = {session for session in first if first[session] != second[session]}
    assert moved == {session for session in first if first[session] == {gone}}
