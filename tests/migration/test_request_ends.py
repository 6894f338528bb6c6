"""How one choice ends: complete, without a client, without an instance, with an error."""

from typing import Any

import pytest

from dynamod.message import tokens
from dynamod.message.errors import BadRequest, EngineFailed, NotFound, Overloaded
from dynamod.message.ingress import Tokens

from .instances import run, virtual


@virtual
async def test_the_clients_leaving_frees_the_slot_and_is_quiet(words: Any) -> None:
    air = words.Air()
    send = await air.start()
    send.tokens(1)
    air.inflight.cancel()
    await air.settle()
    air.inflight.cancel()
    await air.settle()
    assert (send.cancelled, air.completed, air.client.over) == (1, 1, False)
    send.tokens(2, finish="stop")
    send.lose()
    await air.settle()
    assert (len(air.sends), air.client.answer, air.client.over) == (1, "a", False)


@virtual
async def test_our_own_end_is_told_to_the_engine(words: Any) -> None:
    air = words.Air(max_tokens=2)
    send = await air.start()
    send.tokens(1)
    send.tokens(2)
    assert air.client.finished == [("length", 2, None)]
    assert (send.cancelled, air.completed) == (1, 1)
    air = words.Air()
    send = await air.start()
    send.tokens(1, 0, 2)
    assert air.client.finished == [("stop", 2, None)]
    assert (air.client.answer, send.cancelled) == ("a", 1)


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize(("said", "reason"), [("stop", "stop"), ("eos", "stop"), ("length", "length")])
def test_the_engines_reason_at_the_limit_wins(words: Any, text: bool, said: str, reason: str) -> None:
    async def main() -> None:
        air = words.Air(text=text, max_tokens=2)
        send = await air.start()
        if text:
            send.text("ab", said, count=2)
        else:
            send.tokens(1, 2, finish=said)
        assert air.client.finished == [(reason, 2, None)]
        assert (air.client.answer, send.cancelled) == ("ab", 0)

    run(main())


@virtual
async def test_without_an_instance_it_fails(words: Any) -> None:
    air = words.Air(instances=0)
    await air.run()
    assert isinstance(air.error, Overloaded)
    assert (air.completed, air.sends) == (1, [])


@virtual
async def test_a_client_that_leaves_while_the_request_waits_for_a_place(words: Any) -> None:
    air = words.Air(busy=(1, 2, 3), patient=True)
    await air.run()
    assert (air.waiting, air.inflight.instance) == (1, None)
    air.inflight.cancel()
    await air.settle()
    air.free()
    await air.settle()
    assert (air.completed, air.sends, air.client.over, air.inflight.over) == (1, [], False, True)


@virtual
async def test_a_client_that_leaves_before_the_request_has_begun(words: Any) -> None:
    air = words.Air()
    air.inflight.cancel()
    await air.run()
    assert (air.completed, air.sends, air.client.over) == (1, [], False)


@virtual
async def test_the_end_of_the_processor_ends_the_request(words: Any) -> None:
    for busy in ((), (1, 2, 3)):
        air = words.Air(busy=busy, patient=True)
        await air.run()
        air.task.cancel()
        await air.settle()
        assert isinstance(air.error, Overloaded)
        assert [send.cancelled for send in air.sends] == [1] * len(air.sends)
        assert air.task.cancelled()


@virtual
async def test_an_error_reaches_the_client_whole(words: Any) -> None:
    air = words.Air()
    send = await air.start()
    send.fail("BadRequest", "too long", param="messages", code="context_length_exceeded")
    await air.settle()
    error = air.error
    assert isinstance(error, BadRequest)
    assert (str(error), error.param, error.code) == ("too long", "messages", "context_length_exceeded")
    assert (len(air.sends), send.cancelled) == (1, 0)

    air = words.Air()
    (await air.start()).fail("NotFound", "no such adapter")
    await air.settle()
    assert isinstance(air.error, NotFound)
    assert air.error.code == "model_not_found", "without a code of its own the class's"

    air = words.Air()
    (await air.start()).fail("Nonsense", "what")
    await air.settle()
    assert isinstance(air.error, EngineFailed)


@virtual
async def test_a_final_delta_without_anything_new_ends_it(words: Any) -> None:
    air = words.Air()
    send = await air.start()
    send.tokens(1)
    send.sink.delta(Tokens(1, 1, tokens.pack([]), "stop"))
    assert air.client.finished == [("stop", 1, None)]
    air = words.Air(text=True)
    send = await air.start()
    send.text("", "stop", count=0, prompt=3)
    assert air.client.finished == [("stop", 0, 3)]
    assert air.client.shown == []
