"""Vectors from the HTTP request to workers and back, by OpenAI's client; the mocker makes them."""

import asyncio
import base64
import math
import tracemalloc
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from dynamod.engine.base import EngineOptions, Spawn
from dynamod.engine.mocker.embedding import vector
from dynamod.engine.mocker.engine import Mocker
from dynamod.engine.openai.engine import OpenAI
from dynamod.features.embeddings import lowering as embedding
from dynamod.message import tokens, vectors
from dynamod.message.errors import BadRequest
from dynamod.message.worker import Embed
from dynamod.router.policies import NAMES
from dynamod.router.router import RouterSettings
from dynamod.transport.base import Reply


class Quick(Mocker):
    """The mocker, without its pauses; keeps what it was asked. `hold`: it does not answer before that is set."""

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(EngineOptions(options.name, options.path, arguments={"speedup_ratio": 0}), spawn)
        self.asked: list[Embed] = []
        self.hold: asyncio.Event | None = None
        self.held: list[Reply] = []

    def submit(self, request: Any, reply: Reply) -> None:
        if isinstance(request, Embed):
            self.asked.append(request)
            if self.hold is not None:
                self.held.append(reply)
                return
        super().submit(request, reply)


class Pairs(Quick):
    """Scores pairs: the more tokens of an input are equal, the higher."""

    async def start(self) -> None:
        await super().start()
        can = msgspec.structs.replace(self._card.capabilities, pairs=True)
        self._card = msgspec.structs.replace(self._card, types=("score",), capabilities=can, embedding_length=0)

    def submit(self, request: Any, reply: Reply) -> None:
        self.asked.append(request)
        inputs = [list(tokens.unpack(ids)) for ids in request.inputs]
        reply.items(tuple([vectors.pack([1 - len(set(ids)) / len(ids)]) for ids in inputs]), "stop")


class Client(openai.AsyncOpenAI):
    """With what tests look at."""

    async def raw(self, path: str, **body: Any) -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.post(f"{self.base_url}{path}", json=body) as answer:
            return answer.status, await answer.json()


async def fill(house):
    await house.start()
    await house.worker(Quick)


@pytest.fixture
async def refusing(lasting):
    async with Client(base_url=f"http://127.0.0.1:{lasting.port}/v1", api_key="x", max_retries=0) as made:
        yield made


@pytest.fixture
async def client(house, serve):
    await fill(house)
    url = await serve()
    async with asyncio.timeout(20):
        while not house.processor.cards:  # noqa: ASYNC110 - loaded in a thread
            await asyncio.sleep(0.01)
    async with Client(base_url=f"{url}/v1", api_key="x", max_retries=0) as made:
        yield made


def far(url: str, **arguments: Any) -> Any:
    """An engine that asks the server at this URL."""

    def make(options: EngineOptions, spawn: Spawn) -> OpenAI:
        given = {"url": url, "embeddings": True, "model": "sample", **arguments}
        return OpenAI(EngineOptions(options.name, arguments=given), spawn)

    return make


async def loaded(house: Any, count: int) -> None:
    async with asyncio.timeout(20):
        while len(house.processor.cards) < count:  # noqa: ASYNC110 - loaded in a thread
            await asyncio.sleep(0.01)


def length(numbers: list[float]) -> float:
    return math.sqrt(sum(number * number for number in numbers))


async def test_openai_client_float_and_base64_are_equal(client, house) -> None:
    texts = ["one", "two", "one"]
    packed = await client.embeddings.create(model="sample", input=texts)  # the client asks for base64
    plain = await client.embeddings.create(model="sample", input=texts, encoding_format="float")
    assert [row.embedding for row in packed.data] == [row.embedding for row in plain.data]
    assert [row.index for row in plain.data] == [0, 1, 2]
    first, second, third = [row.embedding for row in plain.data]
    assert first == third != second
    assert length(first) == pytest.approx(1)
    ids = [house.processor.model("sample").tokenizer.encode_packed(text, True) for text in texts]
    assert packed.usage.prompt_tokens == packed.usage.total_tokens == sum(map(tokens.count, ids))
    _, raw = await client.raw("embeddings", model="sample", input="one", encoding_format="base64")
    assert base64.b64decode(raw["data"][0]["embedding"]) == vector(ids[0], 64)


async def test_every_form_of_input(client, house) -> None:
    ids = house.processor.model("sample").tokenizer.encode("one two", True)
    forms: list[Any] = ["one two", ["one two"], ids, [ids]]
    found = [(await client.embeddings.create(model="sample", input=form)).data for form in forms]
    assert all(len(rows) == 1 and rows[0].embedding == found[0][0].embedding for rows in found)


async def test_dimensions_cut_and_normalise(client) -> None:
    whole = (await client.embeddings.create(model="sample", input="x")).data[0].embedding
    [row] = (await client.embeddings.create(model="sample", input="x", dimensions=8)).data
    assert len(row.embedding) == 8
    assert length(row.embedding) == pytest.approx(1)
    scale = length(whole[:8])
    assert row.embedding == pytest.approx([number / scale for number in whole[:8]], abs=1e-6)
    status, answer = await client.raw("embeddings", model="sample", input="x", dimensions=65)
    assert (status, answer["error"]["param"]) == (400, "dimensions")
    assert "have 64" in answer["error"]["message"]


async def test_many_inputs_are_groups_and_keep_their_order(client, house) -> None:
    texts = [f"text {number}" for number in range(300)]
    rows = (await client.embeddings.create(model="sample", input=texts)).data
    asked = [request.inputs for member in house.members for request in member.engine.asked]
    assert [len(group) for group in asked] == [32] * 9 + [12]
    tokenizer = house.processor.model("sample").tokenizer
    wanted = [list(vectors.unpack(vector(tokenizer.encode_packed(text, True), 64))) for text in texts]
    assert [row.embedding for row in rows] == wanted


async def test_so_many_groups_are_in_flight_and_a_client_that_leaves_cancels_them(client, house) -> None:
    engine = house.members[0].engine
    engine.hold = asyncio.Event()
    task = asyncio.create_task(client.raw("embeddings", model="sample", input=["x"] * 2048))
    async with asyncio.timeout(10):
        while len(engine.held) < embedding.AT_ONCE:  # noqa: ASYNC110 - other tasks bring it about
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert len(engine.held) == embedding.AT_ONCE
    task.cancel()
    async with asyncio.timeout(10):
        while house.members[0].open or len(house.processor.requests):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert all(reply.cancelled for reply in engine.held)
    assert len(engine.held) == embedding.AT_ONCE


@pytest.mark.parametrize(
    ("body", "status", "param", "says"),
    [
        ({"input": []}, 400, "input", "input"),
        ({"input": ""}, 400, "input", "empty"),
        ({"input": ["a", ""]}, 400, "input[1]", "empty"),
        ({"input": ["a", 5]}, 400, "input[1]", "mixes"),
        ({"input": [5, 99999]}, 400, "input", "99999"),
        ({"input": [[5], [99999]]}, 400, "input[1]", "99999"),
        ({"input": ["a"] * 2049}, 400, "input", "2048"),
        ({"input": ["a", "one " * 3000]}, 400, "input[1]", "maximum context length"),
        ({"input": ["a", "one " * 200000]}, 400, "input[1]", "maximum context length"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format", "base64"),
        ({"input": "a", "nvext": {"ignore_eos": True}}, 400, "nvext.ignore_eos", "not served"),
        ({"input": "a", "model": "other"}, 404, "model", "does not exist"),
    ],
)
async def test_mistakes_name_the_field(refusing, body: dict[str, Any], status: int, param: str, says: str) -> None:
    found, answer = await refusing.raw("embeddings", **{"model": "sample", **body})
    assert (found, answer["error"]["param"]) == (status, param), answer
    assert says in answer["error"]["message"]


async def test_a_model_without_embeddings_refuses_them_and_lists_its_types(client, house, words) -> None:
    await house.worker(words.EchoCore, "plain")
    async with asyncio.timeout(20):
        while len(house.processor.cards) < 2:  # noqa: ASYNC110 - loaded in a thread
            await asyncio.sleep(0.01)
    for path, body in [("embeddings", {"input": "a"}), ("score", {"text_1": "a", "text_2": "b"})]:
        status, answer = await client.raw(path, model="plain", **body)
        assert (status, answer["error"]["param"]) == (404, "model")
        assert f"does not serve {path}" in answer["error"]["message"]
    types = {model.id: model.model_extra["types"] for model in (await client.models.list()).data}
    assert types == {
        "sample": ["chat", "completions", "embeddings", "score"],
        "plain": ["chat", "completions"],
    }


async def test_a_worker_that_dies_leaves_its_groups_to_another(client, house) -> None:
    first = house.members[0]
    first.engine.hold = asyncio.Event()
    task = asyncio.create_task(client.embeddings.create(model="sample", input=[f"t{n}" for n in range(100)]))
    async with asyncio.timeout(10):
        while len(first.engine.held) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    second = await house.worker(Quick)
    await house.die(first)
    rows = (await asyncio.wait_for(task, 20)).data
    assert len(rows) == 100
    assert sum(len(request.inputs) for request in second.engine.asked) == 100


async def test_scores_are_cosines(client) -> None:
    status, answer = await client.raw("score", model="sample", text_1="a", text_2=["a", "b", "c"])
    assert status == 200
    scores = [row["score"] for row in answer["data"]]
    assert scores[0] == pytest.approx(1)
    plain = await client.embeddings.create(model="sample", input=["a", "b", "c"], encoding_format="float")
    one, two, three = [row.embedding for row in plain.data]
    cosines = [sum(a * b for a, b in zip(one, other, strict=True)) for other in (two, three)]
    assert scores[1:] == pytest.approx(cosines)
    _, pairs = await client.raw("score", model="sample", text_1=["a", "b"], text_2=["b", "b"])
    assert [row["score"] for row in pairs["data"]] == pytest.approx([scores[1], 1])
    status, wrong = await client.raw("score", model="sample", text_1=["a", "b"], text_2=["a", "b", "c"])
    assert (status, wrong["error"]["param"]) == (400, "text_1")
    status, wrong = await client.raw("score", model="sample", text_1="a", text_2=["b", "one " * 3000])
    assert (status, wrong["error"]["param"]) == (400, "text_2[1]")


async def test_rerank_gives_the_best_first(client) -> None:
    documents = ["b", {"text": "a"}, "c", "a"]
    status, answer = await client.raw("rerank", model="sample", query="a", documents=documents)
    assert status == 200
    places = [row["index"] for row in answer["results"]]
    assert places[:2] == [1, 3]
    values = [row["relevance_score"] for row in answer["results"]]
    assert values == sorted(values, reverse=True)
    assert answer["results"][0]["document"] == {"text": "a"}
    _, few = await client.raw("rerank", model="sample", query="a", documents=documents, top_n=1, return_documents=False)
    assert [set(row) for row in few["results"]] == [{"index", "relevance_score"}]
    status, wrong = await client.raw("rerank", model="sample", query="a", documents=["b", ""])
    assert (status, wrong["error"]["param"]) == (400, "documents[1]")


async def test_an_engine_that_makes_too_few_vectors_fails(client, house) -> None:
    engine = house.members[0].engine
    engine.hold = asyncio.Event()
    task = asyncio.create_task(client.raw("embeddings", model="sample", input=["a", "b"]))
    async with asyncio.timeout(10):
        while not engine.held:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    engine.held[0].items((vector(b"", 4),), "stop")
    status, answer = await task
    assert status == 502
    assert "1 vectors of 2 texts" in answer["error"]["message"]


async def test_another_server_is_asked(client, house) -> None:
    await house.worker(far(str(client.base_url).rstrip("/")), "far", model="sample")
    await loaded(house, 2)
    texts = ["one", "two"]
    here = await client.embeddings.create(model="sample", input=texts)
    there = await client.embeddings.create(model="far", input=texts)
    assert [row.embedding for row in there.data] == [row.embedding for row in here.data]
    assert there.usage == here.usage
    [row] = (await client.embeddings.create(model="far", input="x", dimensions=5, encoding_format="float")).data
    assert len(row.embedding) == 5
    status, answer = await client.raw("embeddings", model="far", input=["one", "one " * 3000])
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, "input[1]", "context_length_exceeded")
    status, answer = await client.raw("embeddings", model="far", input="x", dimensions=65)
    assert (status, answer["error"]["param"]) == (400, "dimensions")
    assert (await client.raw("score", model="far", text_1="a", text_2="b"))[0] == 404
    messages = [{"role": "user", "content": "hi"}]
    assert (await client.raw("chat/completions", model="far", messages=messages))[0] == 404


async def test_a_server_that_is_gone_is_no_place_for_a_request(client, house) -> None:
    url = str(client.base_url).rstrip("/")
    await house.worker(far(url), "far", model="sample")
    await loaded(house, 2)
    engine = house.members[-1].engine
    engine._server.upstream.url = url.replace("/v1", "/v2")
    status, answer = await client.raw("embeddings", model="far", input="x")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    engine._server.upstream.url = "http://127.0.0.1:9/v1"
    status, answer = await client.raw("embeddings", model="far", input="x")
    assert (status, answer["error"]["code"]) == (503, "no_workers")


@pytest.mark.parametrize("mode", NAMES)
async def test_every_policy_places_groups(house, serve, mode: str) -> None:
    await house.start(routing=RouterSettings(mode=mode))
    await house.worker(Quick)
    await house.worker(Quick)
    await loaded(house, 1)
    url = await serve()
    async with Client(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        found = await client.embeddings.create(model="sample", input=[f"t{n}" for n in range(100)])
        assert len(found.data) == 100
        asked = [sum(len(request.inputs) for request in member.engine.asked) for member in house.members]
        assert sum(asked) == 100
        if mode == "round-robin":
            assert min(asked) > 0
        wanted = house.members[1].instance.instance_id
        await client.embeddings.create(
            model="sample", input=["x"] * 64, extra_body={"nvext": {"backend_instance_id": wanted}}
        )
        assert sum(len(request.inputs) for request in house.members[1].engine.asked) == asked[1] + 64


async def test_many_short_inputs_are_tokenised_in_a_thread(client, house, monkeypatch) -> None:
    """As many long ones are: each takes some microseconds however short it is."""
    await house.worker(Pairs, "pairs")
    await loaded(house, 2)
    threads: list[Any] = []
    to_thread = asyncio.to_thread

    async def counted(work: Any, *arguments: Any, **words: Any) -> Any:
        if work in (embedding._encoded, embedding.framed):
            threads.append(work)
        return await to_thread(work, *arguments, **words)

    monkeypatch.setattr(embedding.asyncio, "to_thread", counted)
    for count, threaded in ((8, 0), (2048, 1)):
        answer = await client.embeddings.create(model="sample", input=["x"] * count)
        assert (len(answer.data), len(threads)) == (count, threaded)
        status, found = await client.raw("rerank", model="pairs", query="x", documents=["y"] * count)
        assert (status, len(found["results"]), len(threads)) == (200, count, 3 * threaded)


async def test_a_pair_that_is_too_long_is_not_written_out_for_all(client, house) -> None:
    """The query stands in each pair: all of these would have a thousand times its tokens."""
    await house.worker(Pairs, "pairs")
    await loaded(house, 2)
    model = house.processor.model("pairs")
    pairs = [("one " * 20_000, "x")] * 1000
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest) as raised:
            embedding.framed(model, pairs, 4096, lambda place: f"documents[{place}]")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (raised.value.param, raised.value.code) == ("documents[0]", "context_length_exceeded")
    assert most < 10_000_000
    status, answer = await client.raw("rerank", model="pairs", query="one " * 20_000, documents=["x"] * 1000)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "sides", "field"),
    [("rerank", ("query", "documents"), "documents"), ("score", ("text_1", "text_2"), "text_2")],
)
async def test_pairs_that_are_too_long_together(client, house, monkeypatch, path, sides, field) -> None:
    """One text stands in all of them: together they are longer than any body."""
    await house.worker(Pairs, "pairs")
    await loaded(house, 2)
    texts = ["one " * 1000, ["x"] * 2048]
    each = len(embedding.framed(house.processor.model("pairs"), [(texts[0], "x")])[0])
    assert each * 2048 <= embedding.MOST_TOKENS
    status, _ = await client.raw(path, model="pairs", **dict(zip(sides, texts, strict=True)))
    assert status == 200
    monkeypatch.setattr(embedding, "MOST_TOKENS", each * 2048 - 1)
    status, answer = await client.raw(path, model="pairs", **dict(zip(sides, texts, strict=True)))
    assert (status, answer["error"]["param"]) == (400, f"{field}[2047]")
    assert f"{each * 2048 - 1} are allowed in one request" in answer["error"]["message"]


async def test_an_engine_that_scores_pairs(client, house) -> None:
    member = await house.worker(Pairs, "pairs")
    await loaded(house, 2)
    documents = ["one two three", "seven", "one two"]
    status, answer = await client.raw("rerank", model="pairs", query="one two three", documents=documents)
    assert status == 200
    assert [row["index"] for row in answer["results"]] == [0, 2, 1]
    encode = house.processor.model("pairs").tokenizer.encode
    [request] = member.engine.asked
    framed = [[*encode("one two three", True), *encode(text)] for text in documents]
    assert [list(tokens.unpack(ids)) for ids in request.inputs] == framed
    assert answer["usage"]["prompt_tokens"] == sum(map(len, framed))
    status, answer = await client.raw("score", model="pairs", text_1=["a", "b"], text_2=["a", "c"])
    assert status == 200
    assert answer["data"][0]["score"] > answer["data"][1]["score"]
    status, answer = await client.raw("score", model="pairs", text_1="a", text_2=["b", "one " * 3000])
    assert (status, answer["error"]["param"]) == (400, "text_2[1]")
    assert (await client.raw("embeddings", model="pairs", input="a"))[0] == 404
