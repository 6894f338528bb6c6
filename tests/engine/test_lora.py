"""Adapters as users write them, their files, who loads them: before any engine is there."""

import json
from pathlib import Path

import msgspec
import pytest

from dynamod import sample
from dynamod.engine.llamacpp.lora import check
from dynamod.engine.lora import AdapterSetting, adapters_of, check_folder, digested
from dynamod.engine.names import check_lora
from dynamod.graph.absolute import absolute
from dynamod.graph.graph import WORKER, Graph, ServiceSpec
from dynamod.message.discovery import Adapter
from dynamod.message.errors import UserError
from dynamod.worker.settings import WorkerSettings
from tests.adapters import write_adapter

MODEL = sample.path("sample.gguf")


def refused(what: object) -> str:
    assert callable(what)
    with pytest.raises(UserError) as caught:
        what()
    return caught.value.line()


def peft(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 12, **config}))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


def test_three_ways_to_write_one() -> None:
    one, two, three = adapters_of(
        ["one=/a=b.gguf", '{"name": "two", "path": "/b", "scale": 0.5}', AdapterSetting("three", "/c")]
    )
    assert (one.name, one.path, one.scale) == ("one", "/a=b.gguf", 1.0)
    assert (two.name, two.path, two.scale) == ("two", "/b", 0.5)
    assert (three.name, three.path) == ("three", "/c")
    assert adapters_of("one=/a") == (Adapter("one", "/a"),)
    options = msgspec.convert({"lora": ["one=/a", {"name": "two", "path": "/b"}]}, WorkerSettings).options()
    assert [adapter.name for adapter in options.lora] == ["one", "two"]


@pytest.mark.parametrize("given", ["one", "one=", "=path", '{"name": "x"}', '{"name": "x", "path": 3}', "{", "a\nb=c"])
def test_what_names_no_adapter_is_refused(given: str) -> None:
    assert "write NAME=PATH, or an object with name, path and scale" in refused(lambda: adapters_of([given]))


def test_names_are_taken_once() -> None:
    assert "'a' is given twice" in refused(lambda: adapters_of(["a=/1", "b=/2", "a=/3"]))
    assert "'m' is the name of the model" in refused(lambda: adapters_of(["a=/1", "m=/2"], "m"))


def test_a_digest_is_of_the_content_and_the_scale(tmp_path: Path) -> None:
    first, same = write_adapter(tmp_path / "a.gguf", 1), write_adapter(tmp_path / "b.gguf", 1)
    other = write_adapter(tmp_path / "c.gguf", 2)
    digest = digested(Adapter("x", str(first))).digest
    assert len(digest) == 32
    assert digested(Adapter("y", str(same))).digest == digest
    assert digested(Adapter("x", str(other))).digest != digest
    assert digested(Adapter("x", str(first), scale=0.5)).digest != digest
    folder = peft(tmp_path / "peft")
    before = digested(Adapter("x", str(folder))).digest
    (folder / "adapter_model.safetensors").write_bytes(b"others")
    assert digested(Adapter("x", str(folder))).digest != before
    assert "gone does not exist" in refused(lambda: digested(Adapter("x", str(tmp_path / "gone"))))


def test_headers_of_files_for_llama_cpp(tmp_path: Path) -> None:
    good = Adapter("x", str(write_adapter(tmp_path / "a.gguf", 1)))
    check([good], MODEL)
    check([good], None)
    foreign = Adapter("x", str(write_adapter(tmp_path / "b.gguf", 1, architecture="qwen2")))
    check([foreign], None)
    assert "for the architecture qwen2, the model is llama" in refused(lambda: check([foreign], MODEL))
    assert "of type model, and no adapter" in refused(lambda: check([Adapter("x", str(MODEL))], MODEL))
    assert "is no GGUF file; convert_lora_to_gguf.py" in refused(lambda: check([Adapter("x", str(tmp_path))], MODEL))


def test_folders_for_vllm(tmp_path: Path) -> None:
    folder = peft(tmp_path / "good")
    check_folder([Adapter("x", str(folder))], None)
    assert "vllm knows no scale" in refused(lambda: check_folder([Adapter("x", str(folder), scale=0.5)], None))
    other = peft(tmp_path / "other", peft_type="IA3")
    assert "of kind IA3, not LORA" in refused(lambda: check_folder([Adapter("x", str(other))], None))
    assert "it needs adapter_config.json" in refused(lambda: check_folder([Adapter("x", str(tmp_path))], None))


def test_engines_that_load_none_say_who_does() -> None:
    check_lora("mocker", (), {}, None)
    for engine in ("mistralrs", "mocker", "sglang"):
        line = refused(lambda engine=engine: check_lora(engine, (Adapter("x", "/a"),), {}, None))
        assert line == f"engine '{engine}' loads no LoRA adapters; engines that do: llamacpp, vllm"
    line = refused(lambda: check_lora("llamacpp", (Adapter("x", "/a"),), {"embeddings": True}, None))
    assert "where it makes vectors" in line


def test_paths_are_relative_to_where_they_were_given(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    given = ["one=a.gguf", "two=gone.gguf", {"name": "three", "path": "a.gguf"}, '{"name": "4", "path": "a.gguf"}', "{"]
    spec = ServiceSpec("Worker", "", "dynamo", "Worker", component_kind=WORKER, config={"lora": given})
    made = absolute(Graph("Worker", {"Worker": spec}, "dynamo", (), "t"), tmp_path).services["Worker"].config["lora"]
    assert made == [
        f"one={tmp_path}/a.gguf",
        "two=gone.gguf",
        *({"name": name, "path": f"{tmp_path}/a.gguf"} for name in ("three", "4")),
        "{",
    ]
