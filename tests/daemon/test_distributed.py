"""The parts of the Python client API, each alone: handlers, contexts, requests in the original's words, answers."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from dynamod.actor import Actor, System
from dynamod.actor.testing import virtual
from dynamod.daemon.distributed.answers import CallAnswer, ChunkAnswer, TokenAnswer
from dynamod.daemon.distributed.context import Context
from dynamod.daemon.distributed.decorators import dynamo_endpoint, dynamo_worker
from dynamod.daemon.distributed.handler import GRACE, Calls, Handler
from dynamod.daemon.distributed.requests import openai, preprocessed, room
from dynamod.daemon.distributed.signals import Signals
from dynamod.message import tokens
from dynamod.message.errors import BadRequest, EngineFailed, UserError
from dynamod.message.ingress import Failed, Items, Text, Tokens
from dynamod.message.worker import Chat, Generate, Sampling, Stops
from dynamod.post.outbox import StreamReply


class Out:
    """Where a reply puts its deltas."""

    def __init__(self) -> None:
        self.origin: object = self
        self.streams: dict[int, StreamReply] = {}
        self.said: list[Any] = []

    def add(self, delta: Any) -> None:
        self.said.append(delta)

    def backlog(self, stream: int) -> int:
        return 0


class Owner(Actor):
    """Owns the tasks of calls."""


async def called(
    handler: Any,
    request: Any = None,
    *,
    leave_after: float | None = None,
    make: Callable[[StreamReply, str], Any] = CallAnswer,
) -> tuple[list[Any], float]:
    """One call of a handler: the deltas, and when the call had ended."""
    out = Out()
    reply = StreamReply(out, 1)
    wrapped = Handler(handler)
    async with System(seed=1) as system:
        ref = system.start("owner", Owner, restart="temporary")
        await system.ready(ref, timeout=1)
        cell = system.cell(ref)
        assert cell is not None
        calls = Calls(wrapped, cell.actor.context.task)
        answer = make(reply, wrapped.name)
        started = system.now()
        calls.begin("r1", request, reply, answer.take, answer.end)
        assert len(calls) == 1
        if leave_after is not None:
            await asyncio.sleep(leave_after)
            reply.cancel()
        while len(calls):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return out.said, system.now() - started


# Handlers.


class Handlers:
    async def many(self, request: Any) -> AsyncIterator[Any]:
        for item in request:
            yield item

    async def one(self, request: Any) -> Any:
        return {"got": request}

    async def with_context(self, request: Any, context: Context) -> AsyncIterator[Any]:
        yield {"id": context.id()}

    async def any_name(self, request: Any, ctx: Context) -> Any:
        return ctx.id()

    async def optional(self, request: Any, context: Context | None = None) -> Any:
        return context.id() if context else None

    async def further(self, request: Any, retries: int = 3) -> Any:
        return retries


@pytest.mark.parametrize(
    ("name", "request_", "items"),
    [
        ("many", [1, "two", None, {"three": [3.0]}], [1, "two", None, {"three": [3.0]}]),
        ("many", [], []),
        ("one", "x", [{"got": "x"}]),
        ("with_context", None, [{"id": "r1"}]),
        ("any_name", None, ["r1"]),
        ("optional", None, ["r1"]),
        ("further", None, [3]),
    ],
)
@virtual
async def test_what_a_handler_may_look_like(name: str, request_: Any, items: list[Any]) -> None:
    said, _ = await called(getattr(Handlers(), name), request_)
    assert [item for delta in said for item in delta.items] == items
    assert said[-1].finish == "stop"


@virtual
async def test_functions_partials_and_callable_objects_are_handlers() -> None:
    class Callable_:
        async def __call__(self, request: Any) -> Any:
            return request

    async def returns_a_stream(request: Any) -> AsyncIterator[Any]:
        return Handlers().many(request)

    for handler, request in ((Callable_(), 5), (lambda request: Handlers().one(request), 5), (returns_a_stream, [5])):
        said, _ = await called(handler, request)
        assert said[0].items[0] in (5, {"got": 5})


def test_what_no_handler_is() -> None:
    def blocks(request: Any) -> Any:
        yield request

    with pytest.raises(UserError, match="blocks is a generator that blocks its process"):
        Handler(blocks)
    with pytest.raises(UserError, match="cannot be called"):
        Handler("generate")  # type: ignore[arg-type]


@virtual
async def test_an_error_of_the_handler_ends_its_request(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Any) -> AsyncIterator[Any]:
        yield 1
        raise ValueError("no such adapter")

    async def refuses(request: Any) -> Any:
        raise BadRequest("too long", param="prompt", code="context_length_exceeded")

    async def times_out(request: Any) -> Any:
        async with asyncio.timeout(1):
            await asyncio.Event().wait()

    said, _ = await called(broken)
    assert said[0] == Items(1, 0, (1,))
    assert isinstance(said[1], Failed)
    assert (said[1].error, said[1].retry) == ("EngineFailed", False)
    assert said[1].message.endswith("broken: ValueError: no such adapter")
    assert "broken failed (request r1)" in caplog.text
    said, _ = await called(refuses)
    assert said == [Failed(1, "BadRequest", "too long", "prompt", False, "context_length_exceeded")]
    said, _ = await called(times_out)
    assert said[0].message.endswith("times_out: TimeoutError: ")


@virtual
async def test_a_reader_that_leaves_stops_the_context_and_then_the_handler() -> None:
    seen: list[Any] = []

    async def deaf(request: Any) -> AsyncIterator[Any]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def stubborn(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0.1)
        finally:
            seen.append((context.is_stopped(), context.is_killed()))

    async def attentive(request: Any, context: Context) -> AsyncIterator[Any]:
        await asyncio.wait([context.async_killed_or_stopped()])
        await asyncio.sleep(0.5)
        seen.append("freed")
        yield "nobody reads this"

    said, took = await called(deaf, leave_after=1.05)
    assert seen == ["cancelled"]
    assert took == pytest.approx(1.05, abs=0.02)
    assert all(isinstance(delta, Items) for delta in said)
    seen.clear()
    _, took = await called(stubborn, leave_after=1)
    assert seen == [(True, True)]
    assert took == pytest.approx(1 + GRACE, abs=0.02)
    seen.clear()
    said, took = await called(attentive, leave_after=1)
    assert seen == ["freed"]
    assert took == pytest.approx(1.5, abs=0.02)
    assert said == []


@virtual
async def test_contexts() -> None:
    context = Context("mine")
    assert (context.id(), context.is_stopped(), context.is_killed()) == ("mine", False, False)
    assert Context().id() != Context().id()
    given_up = context.async_killed_or_stopped()
    waits = context.async_killed_or_stopped()
    given_up.cancel()
    await asyncio.sleep(0)
    context.stop_generating()
    context.stop_generating()
    await waits
    assert (context.is_stopped(), context.is_killed()) == (True, False)
    assert context.async_killed_or_stopped().done()
    context.kill()
    assert context.is_killed()


# Requests.


def test_a_request_in_the_words_of_the_original() -> None:
    request = Generate(
        "r1",
        "m",
        tokens.pack([1, 2, 3]),
        Stops(max_tokens=10, stop=("END",), stop_token_ids_hidden=(7,), min_tokens=2, ignore_eos=True),
        Sampling(temperature=0.5, seed=4, logit_bias={5: 1.0}, logprobs=2),
        eos_token_ids=(9,),
        mdc_sum="abc",
        annotations=("key:value",),
    )
    made = preprocessed(request)
    assert made["token_ids"] == [1, 2, 3]
    assert made["stop_conditions"] == {
        "max_tokens": 10,
        "stop": ["END"],
        "stop_token_ids_hidden": [7],
        "min_tokens": 2,
        "ignore_eos": True,
    }
    sampling = made["sampling_options"]
    assert (sampling["temperature"], sampling["seed"], sampling["top_p"]) == (0.5, 4, None)
    assert sampling["logit_bias"] == {5: 1.0}
    assert made["output_options"]["logprobs"] == 2
    assert (made["eos_token_ids"], made["mdc_sum"], made["annotations"]) == ([9], "abc", ["key:value"])
    assert "batch_token_ids" in made
    assert room(request) == 10
    msgspec.json.encode(made)


def test_what_another_engine_has_generated_is_prompt_and_lowers_the_limits() -> None:
    request = Generate("r1", "m", tokens.pack([1, 2]), Stops(max_tokens=4, min_tokens=5), prior_output=tokens.pack([8]))
    made = preprocessed(request)
    assert made["token_ids"] == [1, 2, 8]
    assert (made["stop_conditions"]["max_tokens"], made["stop_conditions"]["min_tokens"]) == (3, 4)
    assert room(request) == 3
    assert room(Generate("r1", "m", b"")) is None
    assert preprocessed(Generate("r1", "m", b""))["stop_conditions"]["max_tokens"] is None


def test_a_text_engine_gets_the_request_of_the_client_for_one_choice() -> None:
    body = {"model": "m", "messages": [], "n": 3, "whatever": 1}
    assert openai(Chat("r", "m", "chat", msgspec.json.encode(body))) == {**body, "n": 1}
    with pytest.raises(msgspec.DecodeError):
        openai(Chat("r", "m", "chat", b"{"))


# Answers.


def token_answer(*items: Any, room: int | None = None) -> list[Any]:
    out = Out()
    answer = TokenAnswer(StreamReply(out, 1), "E.generate", room)
    for item in items:
        if answer.take(item) == 0:
            break
    answer.end()
    return out.said


@pytest.mark.parametrize(
    ("items", "room", "deltas"),
    [
        ([{"token_ids": [1, 2]}, {"token_ids": [3]}], None, [([1, 2], None), ([3], None), ([], "stop")]),
        ([{"token_ids": [1]}, {"token_ids": [3], "finish_reason": "eos"}], 9, [([1], None), ([3], "stop")]),
        ([{"token_ids": (1, 2)}], 2, [([1, 2], None), ([], "length")]),
        (
            [{"token_ids": [1], "finish_reason": None, "text": "a"}, {"finish_reason": "length"}],
            5,
            [([1], None), ([], "length")],
        ),
        ([{"token_ids": []}, {"token_ids": [], "finish_reason": "content_filter"}], None, [([], "content_filter")]),
        ([{"token_ids": [1], "finish_reason": "stop"}, {"token_ids": [2]}], None, [([1], "stop")]),
        ([], None, [([], "stop")]),
    ],
)
def test_token_ids_become_deltas(
    items: list[Any], room: int | None, deltas: list[tuple[list[int], str | None]]
) -> None:
    said = token_answer(*items, room=room)
    assert [(list(tokens.unpack(delta.ids)), delta.finish) for delta in said] == deltas
    assert all(isinstance(delta, Tokens) for delta in said)


class Output(BaseModel):
    token_ids: list[int]


def test_a_model_of_pydantic_will_do_and_so_will_arrays() -> None:
    import array

    said = token_answer(Output(token_ids=[4]), {"token_ids": array.array("q", [5])})
    assert [list(tokens.unpack(delta.ids)) for delta in said] == [[4], [5], []]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ([1, 2], r"E\.generate yielded \[1, 2\] \(list\): a dict with token_ids is needed"),
        ("text", r"yielded 'text' \(str\)"),
        (object(), "cannot be sent"),
        ({"text": "hello"}, "neither token_ids nor finish_reason; it has: text"),
        ({"token_ids": "abc"}, r"token_ids 'abc' \(str\): a list of whole numbers"),
        ({"token_ids": [1.5]}, r"token_ids \[1.5\] \(list\)"),
        ({"token_ids": 7}, r"token_ids 7 \(int\)"),
        ({"token_ids": [2**31]}, "the token id 2147483648, which is no 32-bit number"),
        ({"token_ids": [5, -1]}, "the token id -1: none is negative"),
        ({"token_ids": [1], "finish_reason": "done"}, "finish_reason 'done'; known are: stop, eos, length"),
        ({"token_ids": [], "finish_reason": "error: out of memory"}, r"E\.generate: out of memory"),
        ({"token_ids": [], "finish_reason": {"error": "boom"}}, r"E\.generate: boom"),
        ({"token_ids": [], "finish_reason": "cancelled"}, "cancelled the request"),
    ],
)
def test_an_item_that_is_none_says_what_is_wrong(item: Any, message: str) -> None:
    with pytest.raises(EngineFailed, match=message):
        token_answer(item)


def chunk(text: str | None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    delta = {} if text is None else {"content": text}
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **fields,
    }


async def chunks(*items: Any, pause: float = 0.0) -> tuple[list[Any], float]:
    async def handler(request: Any) -> AsyncIterator[Any]:
        for item in items:
            yield item
        await asyncio.sleep(pause)

    return await called(handler, make=ChunkAnswer)


@virtual
async def test_chunks_go_as_they_are_and_counts_come_last() -> None:
    first, last = chunk("Hel"), chunk("lo", "stop")
    said, _ = await chunks(first, last)
    assert said == [Items(1, 0, (first,)), Items(1, 1, (last,)), Text(1, 2, "", 2, "stop", None)]
    usage = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5}}
    said, _ = await chunks(first, last, usage)
    assert said[-1] == Text(1, 2, "", 5, "stop", 11)
    said, took = await chunks(first, chunk(None, "length"), pause=60)  # no usage, and no end
    assert said[-1] == Text(1, 2, "", 1, "length", None)
    assert took < 2
    said, _ = await chunks(first)  # no reason
    assert said[-1].finish == "stop"
    said, _ = await chunks({"choices": [{"text": "once"}]})  # a completion
    assert said[0].items[0]["choices"][0]["text"] == "once"
    assert said[-1].tokens == 1


@virtual
async def test_a_whole_answer_will_do() -> None:
    message = {"role": "assistant", "content": "Hello", "tool_calls": None}
    whole = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    said, _ = await chunks(whole)
    (choice,) = said[0].items[0]["choices"]
    assert choice["delta"] == {"role": "assistant", "content": "Hello"}
    assert said[-1] == Text(1, 1, "", 1, "stop", 3)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("Hello", r"yielded 'Hello' \(str\): an OpenAI chunk as a dict is needed"),
        ({"content": "Hello"}, "without a list of choices"),
        ({"choices": "Hello"}, "without a list of choices"),
        ({"error": {"message": "the model is on fire"}}, "the model is on fire"),
        ({"choices": [{"delta": {"content": object()}}]}, "cannot be sent"),
    ],
)
@virtual
async def test_a_chunk_that_is_none(item: Any, message: str) -> None:
    said, _ = await chunks(chunk("a"), item)
    assert isinstance(said[-1], Failed)
    assert said[-1].error == "EngineFailed"
    with pytest.raises(EngineFailed, match=message):
        raise EngineFailed(said[-1].message)


@pytest.mark.parametrize("item", [object(), {"x": {1: object()}}, 2**70, {"deep": [2**64]}])
@virtual
async def test_what_cannot_be_sent_harms_no_other_stream(item: Any) -> None:
    async def handler(request: Any) -> Any:
        return item

    said, _ = await called(handler)
    assert isinstance(said[0], Failed)
    assert "which cannot be sent" in said[0].message


# Decorators.


class Question(BaseModel):
    text: str
    times: int = 1


class Typed:
    @dynamo_endpoint(Question, str)
    async def generate(self, request: Question) -> AsyncIterator[str]:
        for _ in range(request.times):
            yield request.text

    @dynamo_endpoint(Question, str)
    async def stops(self, request: Question, context: Context) -> AsyncIterator[str]:
        yield f"{request.text} {context.id()}"


@dynamo_endpoint(Question, str)
async def alone(request: Question) -> str:
    return request.text


@pytest.mark.parametrize(
    "request_", [{"text": "a", "times": 2}, '{"text": "a", "times": 2}', Question(text="a", times=2)]
)
@virtual
async def test_a_typed_endpoint_parses_its_request(request_: Any) -> None:
    for handler, items in ((Typed().generate, ["a", "a"]), (Typed().stops, ["a r1"]), (alone, ["a"])):
        said, _ = await called(handler, request_)
        assert [item for delta in said for item in delta.items] == items


@pytest.mark.parametrize("request_", [{"times": 2}, '{"text": 1}', "no JSON"])
@virtual
async def test_a_request_that_does_not_fit_is_a_value_error(request_: Any, caplog: pytest.LogCaptureFixture) -> None:
    items = Typed().generate(request_)
    with pytest.raises(ValueError, match="the request is no Question"):
        await anext(items)
    caplog.set_level(logging.CRITICAL)
    said, _ = await called(Typed().generate, request_)
    assert "ValueError: the request is no Question" in said[0].message


def test_the_decorator_needs_its_parentheses() -> None:
    with pytest.raises(UserError, match="dynamo_worker takes static") as caught:
        dynamo_worker(Typed)  # type: ignore[arg-type]
    assert "parentheses" in caught.value.hint


def test_names_that_are_not_here_say_which_are() -> None:
    import dynamo.llm
    import dynamo.runtime

    with pytest.raises(ImportError, match=r"dynamo\.llm has no HttpService here; it has: .*ModelType.*register_llm"):
        from dynamo.llm import HttpService  # noqa: F401
    with pytest.raises(ImportError, match=r"dynamo\.runtime has no EtcdKvCache here"):
        from dynamo.runtime import EtcdKvCache  # noqa: F401
    from dynamo.runtime import logging as logs

    assert callable(logs.configure_dynamo_logging)
    assert all(hasattr(module, name) for module in (dynamo.llm, dynamo.runtime) for name in module.__all__)


def test_block_hashes_are_those_of_the_router() -> None:
    from dynamo.llm import compute_block_hash_for_seq_py
    from dynamod.kvcache.hashes import local_hashes

    ids = list(range(40))
    assert compute_block_hash_for_seq_py(ids, 16) == local_hashes(tokens.pack(ids), 16)
    assert len(compute_block_hash_for_seq_py(ids, 16)) == 2
    with pytest.raises(UserError, match="kv_block_size is 0"):
        compute_block_hash_for_seq_py(ids, 0)


# Signals.


@virtual
async def test_three_signals() -> None:
    said: list[str] = []
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Signals(asyncio.get_running_loop(), said.append, lambda: said.append("cut")):
        signal.raise_signal(signal.SIGTERM)
        assert said == []  # the loop hears of it first
        await asyncio.sleep(0.1)
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0.1)
        assert said == ["SIGTERM", "cut"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@virtual
async def test_the_second_signal_gets_through_to_a_busy_loop() -> None:
    said: list[str] = []
    with Signals(asyncio.get_running_loop(), said.append, lambda: said.append("cut")):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@virtual
async def test_handlers_of_the_file_stay() -> None:
    before = signal.getsignal(signal.SIGTERM)
    own: Any = lambda number, frame: None  # noqa: E731
    try:
        with Signals(asyncio.get_running_loop(), print, print):
            signal.signal(signal.SIGTERM, own)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
