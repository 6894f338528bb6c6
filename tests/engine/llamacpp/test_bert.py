"""Vectors of an encoder: a small BERT of random weights, as GGUF files have such models."""

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.embedding import LlamaCppEmbeddings
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.engine.llamacpp.model import Model as LoadedModel
from dynamod.features.embeddings.lowering import framed
from dynamod.message import tokens, vectors
from dynamod.message.discovery import ModelCard
from dynamod.message.errors import UserError
from dynamod.message.ingress import Items
from dynamod.message.worker import Embed
from dynamod.preprocess.model import Model

pytestmark = pytest.mark.engine

WIDTH, LAYERS, INNER, CONTEXT = 64, 2, 128, 128
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "play", "un", "happy", "naive", "capital", "of", "france", "is", "?", ",", ".", "!", "中"]
LETTERS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)] + list("0123456789")
ENDS = ["ing", "ly", "happy", *LETTERS]
TOKENS = [*SPECIAL, *(f"▁{word}" for word in [*WORDS, *LETTERS]), *ENDS]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("models") / "bert.gguf")


@pytest.fixture(scope="module")
def ranking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("models") / "ranking.gguf", ranks=True)


def write_bert(path: Path, *, ranks: bool = False) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK if ranks else gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_type_count(2)
    for name, index in (("pad", 0), ("unk", 1), ("bos", 2), ("sep", 3), ("mask", 4)):
        getattr(writer, f"add_{name}_token_id")(index)
    random = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape) * 0.2 if len(shape) > 1 else np.full(shape, float("norm.w" in name))
        writer.add_tensor(name, values.astype(np.float32))

    add("token_embd.weight", len(TOKENS), WIDTH)
    add("token_types.weight", 2, WIDTH)
    add("position_embd.weight", CONTEXT, WIDTH)
    norms = ["token_embd_norm"]
    for layer in range(LAYERS):
        for name, rows, columns in (
            *((f"attn_{part}", WIDTH, WIDTH) for part in ("q", "k", "v", "output")),
            ("ffn_up", INNER, WIDTH),
            ("ffn_down", WIDTH, INNER),
        ):
            add(f"blk.{layer}.{name}.weight", rows, columns)
            add(f"blk.{layer}.{name}.bias", rows)
        norms += [f"blk.{layer}.attn_output_norm", f"blk.{layer}.layer_output_norm"]
    if ranks:
        add("cls.weight", WIDTH, WIDTH)
        add("cls.bias", WIDTH)
        add("cls.output.weight", 1, WIDTH)
        add("cls.output.bias", 1)
    for name in norms:
        add(f"{name}.weight", WIDTH)
        add(f"{name}.bias", WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


async def test_vectors_of_an_encoder(bert: Path, words: Any) -> None:
    model = Model.load(ModelCard("m", path=str(bert), context_length=CONTEXT))

    async with System() as system:
        options = EngineOptions("m", bert, arguments={"embeddings": True, "n_threads": 1})
        worker = await words.House(system, LlamaCppEmbeddings, options).start()
        [card] = worker.published
        assert (card.embedding_length, card.context_length) == (WIDTH, CONTEXT)

        async def ask(*texts: str) -> list[Any]:
            inputs = tuple(model.tokenizer.encode_packed(text, True) for text in texts)
            answer = await worker.ask(Embed("r", "m", inputs)).wait()
            [items] = [delta for delta in answer.deltas if isinstance(delta, Items)]
            return [vectors.unpack(one) for one in items.items]

        texts = ["The cat plays.", "a", "of " * 60, "the CAT plays.", "unhappy"]
        together = await ask(*texts)
        alone = [(await ask(text))[0] for text in texts]
        for one, other in zip(together, alone, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
        assert together[0] == pytest.approx(together[3], abs=1e-5), "case makes no difference"
        assert vectors.cosine(together[0], together[1]) < 0.99
        await asyncio.sleep(0)


async def test_the_tokenizer_is_that_of_llama_cpp(bert: Path) -> None:
    from dynamod.engine.llamacpp.arguments import arguments_of
    from dynamod.engine.llamacpp.embedding_model import EmbeddingModel

    tokenizer = Model.load(ModelCard("m", path=str(bert), context_length=CONTEXT)).tokenizer
    loaded = EmbeddingModel(bert, arguments_of({"embeddings": True, "n_threads": 1}), None, lambda: True)
    try:
        for text in (
            *(
                "The cat plays.",
                "unhappily, naïve cats!",
                "CAPITAL of France?",
                "中cat中",
                "xyzzy 42",
                "  spaces\t and\nlines ",
            ),
            *("the,cat", "über", "a-b", "(c)", "don't", "ＦＵＬＬ"),
        ):
            ids = tokenizer.encode(text, True)
            assert (ids[0], ids[-1]) == (2, 3)
            assert ids[1:-1] == loaded.vocabulary.ids(text), text
    finally:
        loaded.free()


async def test_an_encoder_makes_no_answers(bert: Path) -> None:
    from dynamod.engine.llamacpp.arguments import arguments_of

    with pytest.raises(UserError, match="makes no answers") as raised:
        LoadedModel(bert, arguments_of({"n_threads": 1}), None, lambda: True)
    assert "embeddings" in raised.value.hint
    assert LlamaCpp.name == LlamaCppEmbeddings.name


async def test_scores_of_pairs(ranking: Path, words: Any) -> None:
    model = Model.load(ModelCard("m", path=str(ranking), context_length=CONTEXT))
    query, documents = "the cat plays", ["a cat", "capital of france?", "a cat"]
    pairs = framed(model, [(query, document) for document in documents])
    assert pairs[0] == [2, *model.tokenizer.encode(query), 3, *model.tokenizer.encode("a cat"), 3]
    async with System() as system:
        options = EngineOptions("m", ranking, arguments={"embeddings": True, "n_threads": 1})
        worker = await words.House(system, LlamaCppEmbeddings, options).start()
        [card] = worker.published
        assert (card.types, card.capabilities.pairs, card.embedding_length) == (("score",), True, 0)

        async def ask(*inputs: list[int]) -> list[float]:
            answer = await worker.ask(Embed("r", "m", tuple(map(tokens.pack, inputs)))).wait()
            [items] = [delta for delta in answer.deltas if isinstance(delta, Items)]
            return [float(vectors.unpack(one)[0]) for one in items.items]

        scores = await ask(*pairs)
        assert all(0 < score < 1 for score in scores)
        assert scores[0] == pytest.approx(scores[2], abs=1e-5) != pytest.approx(scores[1], abs=1e-4)
        assert [(await ask(pair))[0] for pair in pairs] == pytest.approx(scores, abs=1e-5)
