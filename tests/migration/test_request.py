"""A flight whose instances are played: what is sent again, what is dropped, and how it ends."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.message import tokens
from dynamod.message.errors import EngineFailed, Overloaded
from dynamod.message.ingress import Logprobs, Tokens
from dynamod.message.worker import Stops
from dynamod.preprocess.output import BaseOutput

from .instances import run, virtual


@virtual
async def test_a_whole_answer(words: Any) -> None:
    air = words.Air()
    send = await air.start()
    send.accept()
    send.tokens(1, 2)
    send.tokens(3, finish="stop")
    assert air.client.shown == [("ab", 2), ("c", 1)]
    assert air.client.finished == [("stop", 3, None)]
    assert (air.completed, send.cancelled, len(air.sends)) == (1, 0, 1)
    send.tokens(4)
    send.lose()
    await air.settle()
    assert air.client.answer == "abc"


@virtual
async def test_the_next_instance_continues_behind_what_came(words: Any) -> None:
    air = words.Air()
    (await air.start()).accept()
    air.last.tokens(1, 2)
    air.last.lose()
    await air.settle()
    assert (len(air.sends), air.last.instance.instance_id, air.last.prior) == (2, 2, [1, 2])
    assert air.last.request.token_ids == air.sends[0].request.token_ids
    assert air.last.request.stops == air.sends[0].request.stops, "limits count the whole answer"
    air.last.accept()
    air.last.tokens(3)
    air.last.fail("EngineFailed", "the worker ended", retry=True)
    await air.settle()
    assert (len(air.sends), air.last.prior) == (3, [1, 2, 3])
    assert air.computed_at == [1, 2], "told of the first token of each instance, once"
    air.last.tokens(4, finish="length")
    assert air.computed_at == [1, 2, 3]
    assert air.client.answer == "abcd"
    assert air.client.finished == [("length", 4, None)]
    assert [send.cancelled for send in air.sends] == [0, 0, 0], "who is gone or has ended is not told"


@virtual
async def test_cached_tokens_are_those_of_the_first_worker_that_answers(words: Any) -> None:
    air = words.Air()
    (await air.start()).accept()
    air.last.lose()
    await air.settle()
    air.last.cached(7)
    assert (air.client.cached, air.client.shown, air.computed_at) == ([7], [], []), "it is no token"
    air.last.tokens(1, 2)
    air.last.lose()
    await air.settle()
    assert (len(air.sends), air.last.prior) == (3, [1, 2])
    air.last.cached(9)
    air.last.tokens(3, finish="stop")
    assert (air.client.cached, air.client.answer) == ([7], "abc")


@given(cuts=st.lists(st.integers(0, 3), max_size=3), size=st.integers(0, 8), doubled=st.booleans())
def test_text_and_count_do_not_depend_on_where_it_broke(words: Any, cuts: list[int], size: int, doubled: bool) -> None:
    async def main() -> None:
        air = words.Air(instances=5, limit=4)
        send = await air.start()
        answer = list(range(1, size + 1))
        for cut in cuts:
            part = answer[len(send.prior if air.inflight.answer.history else []) :][:cut]
            for index in part:
                send.tokens(index)
                if doubled:
                    send.tokens(index, offset=send.offset - 1)
            send.lose()
            await air.settle()
            send = air.last
        rest = answer[len(send.prior) :]
        send.tokens(*rest, finish="stop")
        assert air.client.answer == "".join(chr(96 + index) for index in answer)
        assert air.client.finished == [("stop", size, None)]

    run(main())


@virtual
async def test_what_came_twice_is_dropped(words: Any) -> None:
    air = words.Air()
    send = await air.start()
    send.tokens(1, 2)
    send.tokens(1, 2, offset=0)
    send.tokens(2, 3, offset=1)
    send.tokens(offset=0)
    send.tokens(1, 2, 3, finish="stop", offset=0)
    assert air.client.shown == [("ab", 2), ("c", 1)]
    assert air.client.finished == [("stop", 3, None)]


@virtual
async def test_text_and_items_that_came_twice_are_dropped_and_not_counted(words: Any) -> None:
    air = words.Air(text=True)
    send = await air.start()
    send.text("ab", count=2)
    send.text("ab", count=2, offset=0)
    send.items({"n": 1}, offset=2)
    send.items({"n": 1}, {"n": 2}, offset=2)
    send.text("c", offset=4, finish="stop", prompt=7)
    assert air.client.answer == "abc"
    assert air.client.chunks == [{"n": 1}, {"n": 2}]
    assert air.client.finished == [("stop", 3, 7)]


@virtual
async def test_a_gap_moves_the_stream(words: Any) -> None:
    air = words.Air()
    send = await air.start()
    send.tokens(1)
    send.tokens(3, offset=2)
    assert send.cancelled == 1, "it still works on the request"
    await air.settle()
    assert (len(air.sends), air.last.prior) == (2, [1])
    air.last.tokens(2, 3, finish="stop")
    assert air.client.answer == "abc"


@virtual
async def test_a_gap_of_a_text_engine_ends_the_answer(words: Any) -> None:
    air = words.Air(text=True)
    send = await air.start()
    send.text("ab")
    send.text("d", offset=3)
    await air.settle()
    assert isinstance(air.error, EngineFailed)
    assert "lost frames" in str(air.error)
    assert "cannot continue" in str(air.error)
    assert send.cancelled == 1


@virtual
async def test_an_old_attempt_is_not_heard(words: Any) -> None:
    air = words.Air()
    old = await air.start()
    old.tokens(1)
    old.tokens(5, offset=9)
    old.sink.delta(Tokens(1, 1, tokens.pack([8])))  # before the request has moved on, too
    await air.settle()
    assert len(air.sends) == 2
    old.tokens(7, finish="stop")
    old.fail("BadRequest", "late")
    await air.settle()
    old.lose()
    await air.settle()
    assert (len(air.sends), air.client.over, air.client.answer) == (2, False, "a")
    air.last.tokens(2, finish="stop")
    assert air.client.answer == "ab"


@virtual
async def test_a_text_engine_is_asked_again_only_before_its_first_text(words: Any) -> None:
    air = words.Air(text=True)
    first = await air.start()
    first.accept()
    first.lose()
    await air.settle()
    assert (len(air.sends), air.client.over) == (2, False)
    assert air.last.request == first.request
    air.last.text("a")
    air.last.lose()
    await air.settle()
    assert isinstance(air.error, EngineFailed)
    assert len(air.sends) == 2


@virtual
async def test_an_engine_that_is_not_exact_gets_no_prior_output(words: Any) -> None:
    air = words.Air(exact=False)
    (await air.start()).lose()
    await air.settle()
    assert (len(air.sends), air.last.prior) == (2, [])
    air.last.tokens(1)
    air.last.lose()
    await air.settle()
    assert isinstance(air.error, EngineFailed)


@virtual
async def test_a_migration_limit_of_0(words: Any) -> None:
    air = words.Air(limit=0)
    (await air.start()).lose()
    await air.settle()
    assert isinstance(air.error, EngineFailed)
    assert "migration is off" in str(air.error)
    assert len(air.sends) == 1


@given(limit=st.integers(0, 4), instances=st.integers(1, 6))
def test_it_moves_as_often_as_it_may(words: Any, limit: int, instances: int) -> None:
    async def main() -> None:
        air = words.Air(instances=instances, limit=limit)
        await air.start()
        while not air.client.over:
            air.last.lose()
            await air.settle()
        assert len(air.sends) == min(limit + 1, instances)
        assert len({send.instance.instance_id for send in air.sends}) == len(air.sends)
        assert isinstance(air.error, Overloaded if instances <= limit else EngineFailed)
        assert air.error.retry_after == (1.0 if instances <= limit else None)

    run(main())


@given(limit=st.integers(0, 6), instances=st.integers(1, 3))
def test_instances_behind_connections_that_failed_are_tried_again(words: Any, limit: int, instances: int) -> None:
    """Each once before any of them twice."""

    async def main() -> None:
        air = words.Air(instances=instances, limit=limit)
        await air.start()
        while not air.client.over:
            air.last.lose_link()
            await air.settle()
        tried = [send.instance.instance_id for send in air.sends]
        assert len(tried) == limit + 1
        rounds = [tried[at : at + instances] for at in range(0, len(tried), instances)]
        assert all(len(set(one)) == len(one) for one in rounds)
        assert (air.error.status, air.error.retry_after) == (503, 1.0), "no instance has accepted it"

    run(main())


@virtual
async def test_a_connection_that_failed_to_the_only_instance_that_is_gone(words: Any) -> None:
    air = words.Air(instances=1)
    send = await air.start()
    air.instances.clear()
    send.lose_link()
    await air.settle()
    assert "no other instance is ready" in str(air.error)
    assert len(air.sends) == 1


@virtual
async def test_a_refusal_in_the_call_itself_moves_on_and_the_right_slot_is_freed(words: Any) -> None:
    air = words.Air(full=(1, 2))
    await air.start()
    assert [send.instance.instance_id for send in air.sends] == [1, 2, 3]
    air.last.tokens(1)
    air.inflight.cancel()
    await air.settle()
    assert [send.cancelled for send in air.sends] == [0, 0, 1]


@virtual
async def test_all_refuse_in_the_call(words: Any) -> None:
    air = words.Air(full=(1, 2, 3))
    await air.start()
    assert isinstance(air.error, Overloaded)
    assert len(air.sends) == 3


@virtual
async def test_a_bug_in_reading_ends_this_request_alone(words: Any, caplog: pytest.LogCaptureFixture) -> None:
    air = words.Air()
    send = await air.start()
    air.inflight.answer._output.push = air.inflight.answer._token = lambda *ids: 1 // 0
    send.tokens(1)
    assert isinstance(air.error, EngineFailed)
    assert "ZeroDivisionError" in str(air.error)
    assert send.cancelled == 1
    assert "request r failed" in caplog.text


@virtual
async def test_logprobs_stay_with_their_tokens(words: Any) -> None:
    heard: list[tuple[tuple[float, ...], list[int]]] = []
    air = words.Air(logprobs=lambda index, delta, ids: heard.append((delta.chosen, list(ids))))
    send = await air.start()
    for _ in range(2):  # the second time is a doubled frame
        send.sink.delta(Logprobs(1, 0, (-0.1, -0.2)))
        send.tokens(1, 2, offset=0)
    send.sink.delta(Logprobs(1, 1, (-0.2, -0.3)))
    send.tokens(2, 3, offset=1)
    send.sink.delta(Logprobs(1, 3, (-0.9,)))
    send.lose()
    await air.settle()
    air.last.tokens(4, finish="stop")
    assert heard == [((-0.1, -0.2), [1, 2]), ((-0.3,), [3])]


@virtual
async def test_an_instance_that_cannot_be_waited_for_is_left(words: Any) -> None:
    air = words.Air(instances=2)
    (await air.start()).accept()
    air.last.tokens(1, 2)
    air.inflight.leave("silent")
    await air.settle()
    assert (len(air.sends), air.last.prior, air.sends[0].cancelled) == (2, [1, 2], 1)
    air.last.accept()
    air.last.tokens(3, finish="stop")
    assert air.client.answer == "abc"
    air.inflight.leave("silent")  # it is over: nothing happens
    await air.settle()
    assert (len(air.sends), air.completed) == (2, 1)
    alone = words.Air(instances=1)
    (await alone.start()).accept()
    alone.inflight.leave("silent")
    await alone.settle()
    assert "silent" in str(alone.error)


class Embed(msgspec.Struct, frozen=True):
    """A kind of request that no engine here knows: values come, and no text."""

    request_id: str


@virtual
async def test_another_kind_of_request_needs_nothing_here(words: Any) -> None:
    air = words.Air(request=Embed("e"), output=BaseOutput(Stops(), include_stop=False), exact=False)
    (await air.start()).lose()
    await air.settle()
    assert (len(air.sends), air.last.request) == (2, Embed("e"))
    air.last.accept()
    air.last.items([0.1, 0.2], [0.3, 0.4])
    air.last.items([0.3, 0.4], [0.5, 0.6], offset=1)
    air.last.items(finish="stop")
    assert air.client.chunks == [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]
    assert air.client.finished == [("stop", 0, None)]
    assert air.client.shown == []


@virtual
async def test_text_where_there_should_be_none_ends_the_request(words: Any) -> None:
    air = words.Air(request=Embed("e"), output=BaseOutput(Stops(), include_stop=False), exact=False)
    (await air.start()).text("what")
    await air.settle()
    assert isinstance(air.error, EngineFailed)
    assert "TypeError" in str(air.error)


@virtual
async def test_a_dead_instance_is_left_within_one_turn_of_the_loop(words: Any) -> None:
    for gone in ("lose", "leave"):
        air = words.Air()
        send = await air.start()
        send.accept()
        if gone == "lose":
            send.lose()
        else:
            air.inflight.leave("it does not answer")
            assert send.cancelled == 1
        await asyncio.sleep(0)
        assert air.charged is None or air.charged.instance is not send.instance


@virtual
async def test_a_connection_that_failed_behind_the_acceptance_is_an_engine_that_failed(words: Any) -> None:
    air = words.Air(instances=1, limit=0)
    send = await air.start()
    send.accept()
    send.lose_link()
    await air.settle()
    assert isinstance(air.error, EngineFailed)
