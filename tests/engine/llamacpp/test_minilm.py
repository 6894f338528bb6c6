"""MiniLM of the extra `demo`: the converted GGUF file gives the vectors of its own safetensors file, by numpy."""

import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod.engine.llamacpp.arguments import arguments_of
from dynamod.engine.llamacpp.embedding_model import EmbeddingModel
from dynamod.message import tokens, vectors
from dynamod.message.discovery import ModelCard
from dynamod.preprocess.bert_gguf import read_tensors
from dynamod.preprocess.locate import locate
from dynamod.preprocess.model import Model
from dynamod.preprocess.packaged import PACKAGED

FOLDER = PACKAGED["minilm"].path
pytestmark = [
    pytest.mark.engine,
    pytest.mark.real,
    pytest.mark.skipif(FOLDER is None, reason="needs the extra demo"),
]
TEXTS = (
    "A man is eating food.",
    "Someone has a meal.",
    "The capital of France is Paris.",
    "naïve Ünïcode, (brackets)... and 12,345 numbers? #hash ##hash",
    "中文 and Ελληνικά, mixed",
    "one",
    "word " * 200,
)


@cache
def reference() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    from tokenizers import Tokenizer

    assert FOLDER is not None
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    weights = {name: np.asarray(values, np.float32) for name, values in read_tensors(FOLDER / "model.safetensors")}
    return tokenizer, json.loads((FOLDER / "config.json").read_text()), weights


def erf(values: Any) -> Any:
    return np.vectorize(math.erf, otypes=[np.float32])(values)


def forward(ids: list[int]) -> Any:
    """A BERT encoder by its definition, the mean of its last layer, at length 1."""
    _, config, weights = reference()
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]

    def linear(x: Any, name: str) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def split(x: Any) -> Any:
        return x.reshape(len(ids), heads, -1).transpose(1, 0, 2)

    table = "embeddings.{}_embeddings.weight"
    x = weights[table.format("word")][ids] + weights[table.format("position")][: len(ids)]
    x = norm(x + weights[table.format("token_type")][0], "embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        query, key, value = (split(linear(x, f"{at}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True)) @ value
        mixed = linear(mixed.transpose(1, 0, 2).reshape(len(ids), -1), f"{at}.attention.output.dense")
        x = norm(x + mixed, f"{at}.attention.output.LayerNorm")
        inner = linear(x, f"{at}.intermediate.dense")
        inner = inner * 0.5 * (1 + erf(inner / math.sqrt(2)))
        x = norm(x + linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    vector = x.mean(0)
    return vector / np.linalg.norm(vector)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return locate("minilm")


def test_vectors_are_those_of_the_safetensors_file(path: Path) -> None:
    tokenizer, _, _ = reference()
    loaded = EmbeddingModel(path, arguments_of({"embeddings": True, "n_threads": 1}), None, lambda: True)
    try:
        assert loaded.pooling == "mean"
        inputs = [tokenizer.encode(text).ids for text in TEXTS]
        found = [vectors.unpack(one) for one in loaded.vectors([tokens.pack(ids) for ids in inputs]) if one is not None]
        for text, ids, vector in zip(TEXTS, inputs, found, strict=True):
            assert float(np.dot(forward(ids), vector)) > 0.9999, text
        assert loaded.context_length == 512
        for text in TEXTS:
            assert loaded.vocabulary.ids(text) == tokenizer.encode(text).ids[1:-1], text
    finally:
        loaded.free()


def test_the_tokenizer_is_that_of_the_folder(path: Path) -> None:
    ours = Model.load(ModelCard("m", path=str(path), context_length=512)).tokenizer
    for text in TEXTS:
        assert ours.encode(text, True) == reference()[0].encode(text).ids, text
