"""The real processor with real workers behind unix sockets, all in this process."""

import asyncio
import itertools
from typing import Any

import pytest

from dynamod.engine.echo import DELAY
from dynamod.ingress.parsing import ModelParsers
from dynamod.message import tokens
from dynamod.message.errors import BadRequest, EngineFailed, NotFound, Overloaded
from dynamod.message.worker import Generate

from .serving import ready

LONG = "All of this comes back, one token at a time; and then again: éàü 😀 中文. " * 4


async def test_a_chat_comes_back(house, until) -> None:
    await house.start()
    await house.worker()
    await ready(until, house)
    client = await house.ask(text=LONG)
    (answer,) = await client.answers()
    assert LONG in answer
    assert client.reasons == {0: "stop"}
    assert client.prompt_tokens > client.counts[0] > 20, "the end of the message ends the answer"
    assert house.announced == [("sample", True)]
    await until(lambda: house.processor.statistics().flights == 0)
    assert house.processor.statistics().landed == 1


async def test_choices_are_prompts_times_n(house, until, words) -> None:
    await house.start()
    member = await house.worker(words.Seen)
    await ready(until, house)
    client = await house.ask(prompt=["one two", "three"], n=3, seed=7)
    assert await client.answers() == ["one two"] * 3 + ["three"] * 3
    assert client.prompt_tokens == client.counts[0] + client.counts[3], "each prompt counts once"
    assert [request.sampling.seed for request in member.engine.requests] == [7, 8, 9, 7, 8, 9]
    assert {request.sampling.n for request in member.engine.requests} == {1}
    client = await house.ask(prompt=[[1, 2], [3]])
    assert len(await client.answers()) == 2


async def test_many_choices_do_not_begin_in_one_turn_of_the_loop(house, until) -> None:
    await house.start()
    await house.worker()
    await ready(until, house)
    request = asyncio.create_task(house.ask(prompt=["one two"] * 200))
    flights = [0]
    while not request.done():
        await asyncio.sleep(0)
        flights.append(house.processor.statistics().flights)
    assert max(after - before for before, after in itertools.pairwise(flights)) < 50
    assert await (await request).answers() == ["one two"] * 200


async def test_a_client_that_leaves_while_its_choices_begin(house, until) -> None:
    await house.start()
    member = await house.worker()
    await ready(until, house)
    request = asyncio.create_task(house.ask(prompt=[LONG] * 200))
    await until(lambda: house.processor.statistics().flights)
    assert house.processor.statistics().flights < 200
    request.cancel()
    await asyncio.wait([request])
    await until(lambda: not house.processor.statistics().flights and not member.open)


async def test_every_choice_has_a_seed_of_its_own(house, until, words) -> None:
    await house.start()
    member = await house.worker(words.Seen)
    await ready(until, house)
    await (await house.ask(text="x", n=8)).answers()
    await (await house.ask(text="x")).answers()
    seeds = [request.sampling.seed for request in member.engine.requests]
    assert None not in seeds
    assert len(set(seeds)) == 9
    await (await house.ask(text="x", n=2, seed=2**63 - 1)).answers()
    last = [request.sampling.seed for request in member.engine.requests[-2:]]
    assert last == [2**63 - 1, -(2**63)], "engines keep seeds in 64 bits"


async def test_an_engine_without_chance_is_not_given_any(house, until, words, monkeypatch) -> None:
    """Equal requests get equal answers, but choices of one request differ."""
    monkeypatch.setattr(words.Seen, "capabilities", words.EchoCore.capabilities)
    await house.start()
    member = await house.worker(words.Seen)
    await ready(until, house)
    await (await house.ask(text="x")).answers()
    await (await house.ask(text="x", n=3)).answers()
    await (await house.ask(text="x", seed=5)).answers()
    assert [request.sampling.seed for request in member.engine.requests] == [None, None, 1, 2, 5]


async def test_annotations(house, until, words) -> None:
    await house.start()
    await house.worker()
    await house.worker(words.EchoFull, "text")
    await ready(until, house)
    wanted = {"annotations": ["formatted_prompt", "token_ids", "request_id", "nonsense"]}
    client = await house.ask(text="hello", nvext=wanted)
    await client.answers()
    assert set(client.annotations) == {"formatted_prompt", "token_ids", "request_id"}
    assert "hello" in client.annotations["formatted_prompt"]
    assert len(client.annotations["token_ids"]) == client.prompt_tokens
    client = await house.ask(model="text", text="hello", nvext=wanted)
    assert await client.answers() == ["hello"]
    assert set(client.annotations) == {"request_id"}


async def test_instances_take_turns(house, until, words) -> None:
    await house.start()
    members = [await house.worker(words.Seen) for _ in range(2)]
    await ready(until, house)
    for _ in range(10):
        await (await house.ask(text="x")).answers()
    assert [len(member.engine.requests) for member in members] == [5, 5]
    await (await house.ask(text="x", n=4)).answers()
    assert [len(member.engine.requests) for member in members] == [7, 7]


async def test_each_model_has_turns_of_its_own(house, until, words) -> None:
    await house.start()
    members = {name: [await house.worker(words.Seen, name) for _ in range(2)] for name in ("a", "b")}
    await until(lambda: len(house.processor.cards) == 2)
    for turn in range(20):
        await (await house.ask(model="ab"[turn % 2], text="x")).answers()
    for pair in members.values():
        assert [len(member.engine.requests) for member in pair] == [5, 5]


async def test_an_unknown_model(house) -> None:
    await house.start()
    with pytest.raises(NotFound, match="Models served now: none") as caught:
        await house.ask(model="other")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize("model", ["sample", "text"])
@pytest.mark.parametrize(
    "fields",
    [
        {"text": "x", "logprobs": True, "top_logprobs": 2},
        {"prompt": "x", "logprobs": 1},
        {"prompt": "x", "logprobs": 0},
    ],
)
async def test_logprobs_that_no_engine_has_are_refused(house, until, words, model, fields) -> None:
    await house.start()
    await house.worker()
    await house.worker(words.EchoFull, "text")
    await ready(until, house)
    with pytest.raises(BadRequest, match="no logprobs") as caught:
        await house.ask(model=model, **fields)
    assert caught.value.param == "logprobs"
    assert house.processor.statistics().requests == 0


async def test_logprobs_are_not_refused_where_there_are_any(house, until, words) -> None:
    await house.start()
    await house.worker(words.Manual, "m")
    await ready(until, house, "m")
    await house.ask(model="m", logprobs=True)


async def test_no_instance_is_ready(house, until) -> None:
    await house.start()
    member = await house.worker()
    await ready(until, house)
    card = house.processor.cards["sample"]
    house.leave(member)
    assert house.processor.cards == {}
    assert house.announced == [("sample", True), ("sample", False)]
    with pytest.raises(NotFound):
        await house.ask()
    house.processor.cards["sample"] = card  # its last instance goes between the check and the sending
    house.processor.models.tokenizers["sample"] = None
    house.processor.models.parsers["sample"] = ModelParsers(card, None)
    with pytest.raises(Overloaded) as caught:
        await house.ask()
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (503, "no_workers", 1.0)


@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_a_worker_that_dies_in_mid_stream_is_not_noticed(house, until, words, pace, kind) -> None:
    pace.setenv(DELAY, "2")
    await house.start()
    members = [await house.worker(words.Seen) for _ in range(2)]
    await ready(until, house)
    fields = {"text": LONG} if kind == "chat" else {"prompt": LONG}
    (whole,) = await (await house.ask(**fields)).answers()
    for member in members:
        member.engine.requests.clear()
    client = await house.ask(**fields)
    await until(lambda: client.counts[0] > 10)
    dying = next(member for member in members if member.engine.requests)
    other = next(member for member in members if member is not dying)
    await house.die(dying)
    assert await client.answers() == [whole]
    assert client.reasons == {0: "stop"}
    (again,) = other.engine.requests
    assert 10 < tokens.count(again.prior_output) < client.counts[0]
    assert again.sampling == dying.engine.requests[0].sampling, "with the same seed"


async def test_all_choices_move(house, until, pace) -> None:
    pace.setenv(DELAY, "2")
    await house.start()
    members = [await house.worker() for _ in range(2)]
    await ready(until, house)
    client = await house.ask(prompt=[LONG, LONG[::-1]], n=4)
    await until(lambda: min(client.counts.values()) > 5)
    await house.die(members[0])
    assert await client.answers() == [LONG] * 4 + [LONG[::-1]] * 4


async def test_a_worker_that_dies_alone(house, until, pace) -> None:
    pace.setenv(DELAY, "2")
    await house.start()
    member = await house.worker()
    await ready(until, house)
    client = await house.ask(text=LONG, n=3)
    await until(lambda: client.counts[2] > 5)
    await house.die(member)
    with pytest.raises(Overloaded, match="no other instance is ready"):
        await client.answers()
    assert house.processor.statistics().flights == 0, "the first failure ends all choices"


async def test_migration_can_be_switched_off(house, until, pace) -> None:
    pace.setenv(DELAY, "2")
    await house.start(migration_limit=0)
    members = [await house.worker() for _ in range(2)]
    await ready(until, house)
    client = await house.ask(text=LONG, n=2)
    await until(lambda: min(client.counts.values()) > 2)
    for member in members:
        await house.die(member)
    with pytest.raises(EngineFailed, match="migration is off"):
        await client.answers()


async def test_a_text_engine_is_asked_again_only_before_its_first_text(house, until, words) -> None:
    await house.start()
    members = [await house.worker(words.Manual, "m") for _ in range(2)]
    client = await house.ask(model="m", text="x")
    await until(lambda: any(member.engine.replies for member in members))
    first = next(member for member in members if member.engine.replies)
    second = next(member for member in members if member is not first)
    await house.die(first)
    await until(lambda: second.engine.replies)
    second.engine.replies[0].text("part of", 2)
    await until(lambda: client.counts[0] == 2)
    await house.die(second)
    with pytest.raises(EngineFailed, match="cannot continue"):
        await client.answers()
    assert client.texts == {0: "part of"}


async def test_an_engines_error_comes_with_all_it_has(house, until, words) -> None:
    await house.start()
    member = await house.worker(words.Manual, "m")
    client = await house.ask(model="m", text="x")
    await until(lambda: member.engine.replies)
    member.engine.replies[0].failed("BadRequest", "too long", param="messages", code="context_length_exceeded")
    with pytest.raises(BadRequest, match="too long") as caught:
        await client.answers()
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


async def test_a_full_worker_is_passed_by(house, until) -> None:
    await house.start()
    full, other = await house.worker(), await house.worker()
    await ready(until, house)
    full.context.remove(full.instance.path)
    for _ in range(4):
        await (await house.ask(text="x")).answers()
    assert other.actor.statistics().accepted == 4


async def test_leaving_frees_every_choice(house, until, pace) -> None:
    pace.setenv(DELAY, "20")
    await house.start()
    member = await house.worker()
    await ready(until, house)
    client = await house.ask(text=LONG, n=5)
    await until(lambda: min(client.counts.values()) > 1)
    client.run.cancel()
    before = dict(client.counts)
    await until(lambda: member.open == 0)
    assert house.processor.statistics().flights == 0
    assert client.counts == before
    assert member.actor.statistics().cancelled == 5


async def test_a_client_that_leaves_at_any_moment_leaves_nothing(house, until, pace) -> None:
    pace.setenv(DELAY, "20")
    await house.start()
    member = await house.worker()
    await ready(until, house)
    asking = asyncio.get_running_loop().create_task
    for turns in range(12):
        task = asking(house.ask(text=LONG))
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            (await task).run.cancel()
        task.cancel()
        await asyncio.wait([task])
    await until(lambda: house.processor.statistics().flights == 0)
    await until(lambda: member.open == 0)


async def test_a_long_prompt_keeps_nobody_waiting(house, until, monkeypatch) -> None:
    await house.start()
    await house.worker()
    await ready(until, house)
    model = house.processor.models.tokenizers["sample"]
    encode, go = model.encode, asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(prepared: Any, request_id: str) -> Generate:
        if "long" in prepared.prompt:
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result(10)
        return encode(prepared, request_id)

    monkeypatch.setattr(model, "encode", slow)
    monkeypatch.setattr(model, "needs_thread", lambda prompt: "long" in prompt)
    long = loop.create_task(house.ask(prompt="long"))
    await asyncio.sleep(0.01)
    try:
        async with asyncio.timeout(5):
            assert await (await house.ask(prompt="short")).answers() == ["short"]
    finally:
        go.set()
    assert await (await long).answers() == ["long"]


async def test_a_bug_in_lowering_does_not_end_the_processor(house, until, monkeypatch) -> None:
    await house.start()
    await house.worker()
    await ready(until, house)
    model = house.processor.models.tokenizers["sample"]
    with monkeypatch.context() as patch:
        patch.setattr(model, "prepare_chat", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await house.ask(text="x")
    assert len(await (await house.ask(text="x")).answers()) == 1


async def test_the_clocks_are_watched(house, until, words, monkeypatch) -> None:
    from dynamod.ingress import processor
    from dynamod.migration.base import Limits

    monkeypatch.setattr(processor, "CLOCK", 0.01)
    await house.start(limits=Limits(first=0.05))
    await house.worker(words.Manual, "m")
    client = await house.ask(model="m", text="x")
    with pytest.raises(Overloaded, match=r"within 0\.05 s"):
        await client.answers()


async def test_health_and_statistics(house, until) -> None:
    await house.start()
    member = await house.worker()
    await ready(until, house)
    health = house.backend.health()
    assert health["endpoints"] == ["dyn://dynamo.backend.generate"]
    assert [row["instance_id"] for row in health["instances"]] == [member.instance.instance_id]
    assert set(house.backend.models()) == {"sample"}
    assert house.processor.inspection()["model_names"] == ["sample"]


async def test_others_ask_by_messages(house, until) -> None:
    from dynamod.ingress.dispatcher import RouterRows
    from dynamod.ingress.messages import Explain, GetBackend
    from dynamod.ingress.processor import ProcessorBackend

    await house.start()
    member = await house.worker()
    await ready(until, house)
    house.backend = await house.ref.ask(GetBackend(), timeout=1)
    assert isinstance(house.backend, ProcessorBackend)
    await (await house.ask(text="x")).answers()
    (record,) = await house.ref.ask(Explain("chatcmpl-job2"), timeout=1)
    assert (record["chosen"], record["rule"]) == (member.instance.instance_id, "the only candidate")
    assert [one["process"] for one in record["candidates"]] == [""]
    assert record == (await house.ref.ask(Explain("job2"), timeout=1))[0]
    assert await house.ref.ask(Explain("nobody"), timeout=1) == []
    rows = await house.ref.ask(RouterRows("dynamo_frontend"), timeout=1)
    assert {prefix for prefix, _, _ in rows} >= {"dynamod_router", "dynamo_frontend_worker"}
