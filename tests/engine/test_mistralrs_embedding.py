"""Vectors of texts by the real mistral.rs, with a Qwen3-Embedding model of random weights that is small."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("mistralrs", reason="needs the extra mistralrs")

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.mistralrs.embedding import MistralRsEmbeddings
from dynamod.engine.names import engine_class
from dynamod.message import tokens, vectors
from dynamod.message.errors import UserError
from dynamod.message.ingress import Items
from dynamod.message.worker import Embed

pytestmark = pytest.mark.engine

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY, CONTEXT = 64, 2, 4, 2, 16, 128, 1024, 128
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "intermediate_size": INNER,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": LAYERS,
    "attention_bias": False,
    "torch_dtype": "float32",
    "eos_token_id": 1021,
}
PARTS = "sentence_transformers.models."


def write_model(folder: Path) -> Path:
    """As the files of such models are: no head, and how to pool in folders of their own."""
    for file in sample.path("sample").glob("*token*.json"):
        shutil.copy(file, folder)
    names = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": PARTS + kind} for at, (path, kind) in enumerate(names)
    ]
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_lasttoken": True, "include_prompt": True}
    pooling |= dict.fromkeys(
        [f"pooling_mode_{name}" for name in ("cls_token", "mean_tokens", "max_tokens")]
        + [f"pooling_mode_{name}" for name in ("mean_sqrt_len_tokens", "weightedmean_tokens")],
        False,
    )
    (folder / "1_Pooling").mkdir()
    for name, value in (("config", CONFIG), ("modules", modules), ("1_Pooling/config", pooling)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (VOCABULARY, WIDTH), "norm": (WIDTH,)}
    for layer in range(LAYERS):
        here = {
            "self_attn.q_proj": (HEADS * HEAD, WIDTH),
            "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
            "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH),
            "self_attn.o_proj": (WIDTH, HEADS * HEAD),
            "self_attn.q_norm": (HEAD,),
            "self_attn.k_norm": (HEAD,),
            "mlp.gate_proj": (INNER, WIDTH),
            "mlp.up_proj": (INNER, WIDTH),
            "mlp.down_proj": (WIDTH, INNER),
            "input_layernorm": (WIDTH,),
            "post_attention_layernorm": (WIDTH,),
        }
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in here.items()}
    random, header, data = np.random.default_rng(1), {}, b""
    for name, shape in shapes.items():
        values = np.ones(shape) if len(shape) == 1 else random.standard_normal(shape) * 0.05
        part = values.astype("<f4").tobytes()
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return folder


def embed(*inputs: list[int]) -> Embed:
    return Embed("r", "m", tuple(map(tokens.pack, inputs)))


def found(answer: Any) -> list[list[float]]:
    [delta] = [one for one in answer.deltas if isinstance(one, Items)]
    assert delta.finish == "stop"
    return [list(vectors.unpack(one)) for one in delta.items]


async def test_vectors(tmp_path: Path, words: Any) -> None:
    options = EngineOptions("m", write_model(tmp_path), arguments={"embeddings": True, "arch": "qwen3embedding"})
    assert engine_class("mistralrs", options.arguments) is MistralRsEmbeddings
    async with System() as system:
        worker = await words.House(system, MistralRsEmbeddings, options).start()
        [card] = worker.published
        assert (card.types, card.embedding_length, card.context_length) == (("embeddings", "score"), WIDTH, CONTEXT)
        texts = [[5, 6, 7], [8, 9], [5, 6, 7], list(range(1, 90))]
        together = found(await worker.ask(embed(*texts)).wait())
        alone = [found(await worker.ask(embed(text)).wait())[0] for text in texts]
        for one, other in zip(together, alone, strict=True):
            assert len(one) == WIDTH
            assert sum(number * number for number in one) == pytest.approx(1, abs=1e-5)
            assert one == pytest.approx(other, abs=1e-5)
        assert together[0] == together[2] != together[1]
        many = [worker.ask(embed([n], [n, n])) for n in range(1, 9)]
        assert [len(found(await answer.wait())) for answer in many] == [2] * 8
        longest = await worker.ask(embed([1] * CONTEXT)).wait()
        assert len(found(longest)) == 1
        assert (await worker.ask(embed([1] * (CONTEXT + 1))).wait()).error.code == "context_length_exceeded"
        assert (await worker.ask(embed([VOCABULARY])).wait()).error.error == "BadRequest"
        gone = [worker.ask(embed([1] * 100)) for _ in range(20)]
        for answer in gone:
            answer.stream.cancel()
        await words.until(lambda: worker.statistics.engine.running + worker.statistics.engine.waiting == 0)
        assert worker.statistics.engine.steps < 40


async def test_an_engine_that_fails(tmp_path: Path, words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises, there is an answer; the next request is computed."""
    options = EngineOptions("m", write_model(tmp_path), arguments={"embeddings": True, "arch": "qwen3embedding"})
    async with System() as system:
        worker = await words.House(system, MistralRsEmbeddings, options).start()
        for error in (RuntimeError("no memory"), ValueError("no such"), BaseException("a panic")):
            with monkeypatch.context() as patch:
                patch.setattr(MistralRsEmbeddings, "_vectors", Mock(side_effect=error))
                answer = await worker.ask(embed([5])).wait()
            assert answer.error.error == "EngineFailed"
            assert type(error).__name__ in answer.error.message
        assert len(found(await worker.ask(embed([5])).wait())) == 1


async def test_what_it_cannot_load(tmp_path: Path, words: Any) -> None:
    for path, arguments, says in [
        (sample.path("sample.gguf"), {}, "no vectors with GGUF"),
        (write_model(tmp_path), {"arch": "llama"}, "knows no arch 'llama'"),
    ]:
        options = EngineOptions("m", path, arguments={"embeddings": True, **arguments})
        made = MistralRsEmbeddings(options, lambda work, _name: work)
        with pytest.raises(UserError, match=says):
            await made.start()
        await made.close()
