"""Vectors of texts by the real llama.cpp with the shipped sample model, and the batches that they are computed in."""

import asyncio
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the sample model is too small for more

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod import sample
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.arguments import arguments_of
from dynamod.engine.llamacpp.embedding import Asked, LlamaCppEmbeddings, Queue
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.engine.names import engine_class
from dynamod.message import tokens, vectors
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, UserError
from dynamod.message.worker import Embed
from dynamod.preprocess.model import Model

pytestmark = pytest.mark.engine

PATH = sample.path("sample.gguf")
MODEL = Model.load(ModelCard("m", path=str(PATH), context_length=2048))
TEXTS = ["What is the capital of France?", "one two three", "a", "Who are you? " * 20, "one two three"]


class Answer:
    """A reply that keeps what comes."""

    def __init__(self) -> None:
        self.cancelled = self.ended = False
        self.vectors: list[bytes] = []
        self.error: Any = None
        self.over = asyncio.Event()

    def items(self, found: tuple[bytes, ...], finish: str | None = None) -> None:
        assert finish == "stop"
        self.vectors += found
        self.ended = True
        self.over.set()

    def raised(self, error: Exception) -> None:
        self.error, self.ended = error, True
        self.over.set()


def ids_of(text: str) -> bytes:
    return MODEL.tokenizer.encode_packed(text, True)


def engine(**arguments: Any) -> LlamaCppEmbeddings:
    tasks: set[asyncio.Task[Any]] = set()

    def spawn(work: Any, _name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        return task

    given = {"embeddings": True, "pooling": "mean", "n_threads": 1, **arguments}
    return LlamaCppEmbeddings(EngineOptions("m", PATH, arguments=given), spawn)


async def ask(made: LlamaCppEmbeddings, *texts: str) -> list[Any]:
    answer = Answer()
    made.submit(Embed("r", "m", tuple(map(ids_of, texts))), answer)  # type: ignore[arg-type]
    async with asyncio.timeout(30):
        await answer.over.wait()
    assert answer.error is None
    return [vectors.unpack(one) for one in answer.vectors]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
async def test_alone_and_in_a_batch_the_vectors_are_equal(pooling: str) -> None:
    made = engine(pooling=pooling)
    await made.start()
    try:
        together = await ask(made, *TEXTS)
        alone = [(await ask(made, text))[0] for text in TEXTS]
        beside = await asyncio.gather(*[ask(made, text) for text in TEXTS])
        length = made.card().embedding_length
        for one, other, third in zip(together, alone, beside, strict=True):
            assert len(one) == length > 0
            assert sum(number * number for number in one) == pytest.approx(1, abs=1e-5)
            assert one == pytest.approx(other, abs=1e-5)
            assert one == pytest.approx(third[0], abs=1e-5)
        assert vectors.cosine(together[1], together[4]) == pytest.approx(1, abs=1e-6)
        if pooling == "mean":
            assert vectors.cosine(together[0], together[1]) < 0.999
        assert made.card().types == ("embeddings", "score")
        assert made.statistics().waiting == 0
    finally:
        await made.close()


async def test_refusals() -> None:
    made = engine()
    await made.start()
    try:
        with pytest.raises(BadRequest, match="maximum context length is 2048"):
            made.submit(Embed("r", "m", (tokens.pack([1] * 2049),)), Answer())  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match="99999"):
            made.submit(Embed("r", "m", (tokens.pack([99999]),)), Answer())  # type: ignore[arg-type]
        longest = Answer()
        made.submit(Embed("r", "m", (tokens.pack([1] * 2048),)), longest)  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            await longest.over.wait()
        assert len(longest.vectors) == 1
    finally:
        await made.close()


async def test_who_has_left_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    # A batch is as large as the measured rate allows, and on a busy machine the second one would be cut.
    monkeypatch.setattr("dynamod.engine.llamacpp.embedding.SECONDS", 3600.0)
    made = engine()
    await made.start()
    try:
        gone, stays = Answer(), Answer()
        gone.cancelled = True
        for answer in (gone, stays):
            made.submit(Embed("r", "m", (ids_of("a"),) * 40), answer)  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            await stays.over.wait()
        assert len(stays.vectors) == 40
        assert not gone.vectors
        assert made.statistics().steps == 2, "40 texts, of which 32 are computed at once"
    finally:
        await made.close()


async def test_a_file_without_pooling_needs_the_argument() -> None:
    made = engine(pooling=None)
    with pytest.raises(UserError, match="does not say how the vector") as caught:
        await made.start()
    assert "mean, cls, last" in caught.value.hint
    await made.close()


async def test_pooling_is_what_the_file_says() -> None:
    said = engine(pooling=None, kv_overrides="llama.pooling_type=int:3")
    given = engine(pooling="last")
    try:
        await said.start()
        await given.start()
        assert said._model is not None
        assert said._model.pooling == "last"
        assert await ask(said, *TEXTS) == await ask(given, *TEXTS)
    finally:
        await said.close()
        await given.close()
    ranking = engine(pooling=None, kv_overrides="llama.pooling_type=int:4")
    with pytest.raises(UserError, match="does not frame two texts"):
        await ranking.start()
    await ranking.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"embeddings": True, "n_ctx": 512}, "n_ctx: has no effect with embeddings"),
        ({"embeddings": True, "kv_host_gb": 1}, "kv_host_gb: has no effect with embeddings"),
        ({"pooling": "mean"}, "pooling: has an effect with embeddings only"),
        ({"embeddings": True, "pooling": "rank"}, "pooling"),
    ],
)
def test_mistakes_in_arguments(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        arguments_of(given)


def test_the_argument_chooses_the_engine() -> None:
    assert engine_class("llamacpp") is LlamaCpp
    assert engine_class("llama.cpp", {"embedding": True}) is LlamaCppEmbeddings


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.booleans()), max_size=8),
    st.integers(20, 60),
    st.integers(1, 5),
    st.sampled_from([1, 4, 16]),
    st.none() | st.integers(1, 60),
)
def test_batches_keep_their_bounds_and_leave_nothing_out(
    requests: Any, room: int, slots: int, align: int, most: int | None
) -> None:
    room = -(-room // align) * align
    queue, wanted = Queue(room, slots, align), []
    for number, (lengths, gone) in enumerate(requests):
        answer = Answer.__new__(Answer)
        answer.cancelled, answer.ended = gone, False
        inputs = tuple(tokens.pack([number] * length) for length in lengths)
        queue.add(Asked(Embed(str(number), "m", inputs), answer))  # type: ignore[arg-type]
        wanted += [] if gone else inputs
    assert len(queue) == len(wanted)
    taken = []
    while batch := queue.take() if most is None else queue.take(most):
        assert len(batch) <= slots
        size = sum(-(-tokens.count(ids) // align) * align for _, ids in batch)
        assert size <= room
        assert most is None or size <= most or len(batch) == 1
        taken += [ids for _, ids in batch]
    assert taken == wanted
    assert len(queue) == 0
