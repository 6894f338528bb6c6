"""mistral.rs with models other than the sample: loaded, cut, put together from two places, refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.mistralrs import MistralRs
from dynamod.engine.mistralrs.loading import load
from dynamod.message.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample.path("sample"), tmp_path / "model"))


def change(path: Path, **fields: Any) -> None:
    values = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


async def test_a_bos_is_added_once(words: Any, folder: Path) -> None:
    special = {"id": "<|endoftext|>", "ids": [1021], "tokens": ["<|endoftext|>"]}
    single = [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    change(
        folder / "tokenizer.json",
        post_processor={
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": {"<|endoftext|>": special},
        },
    )
    async with System() as system:
        house = await words.House(system, MistralRs, EngineOptions("m", folder)).start()
        runner = house.workers[-1]._engine._runner
        from mistralrs import ChatCompletionRequest

        for prompt in ("one two", "<|endoftext|>one two"):
            answer = await house.ask(words.completion(prompt, max_tokens=1)).wait()
            asked = ChatCompletionRequest(messages=prompt, model="default", max_tokens=1)
            assert answer.prompt_tokens == runner.send_chat_completion_request(asked).usage.prompt_tokens
            assert answer.prompt_tokens == len(runner.tokenize_text("one two", False, None)) + 1


async def test_a_shorter_context_is_kept(words: Any) -> None:
    options = EngineOptions("m", sample.path("sample"), context_length=20)
    async with System() as system:
        house = await words.House(system, MistralRs, options).start()
        assert house.published[0].context_length == 20
        fits = await house.ask(words.completion("one two three", ignore_eos=True)).wait()
        assert (fits.count + (fits.prompt_tokens or 0), fits.finish) == (20, "length")
        beyond = await house.ask(words.completion("one two three " * 10)).wait()
        assert "maximum context length is 20 tokens" in beyond.error.message


async def test_weights_and_tokenizer_from_two_places(words: Any, folder: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    shutil.copy(sample.path("sample.gguf"), weights / "x.gguf")
    options = EngineOptions("m", weights / "x.gguf", folder)
    async with System() as system:
        house = await words.House(system, MistralRs, options).start()
        answer = await house.ask(words.chat("What is the capital of France?", max_tokens=3)).wait()
        assert answer.count == 3
        assert house.published[0].config_path == str(folder)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"rope_theta": ...}, "rope_theta.*; write rope_theta at the top level"),
        ({"architectures": ["FooForCausalLM"]}, "FooForCausalLM.*arch"),
    ],
)
def test_a_model_that_does_not_load_is_explained(folder: Path, config: dict[str, Any], why: str) -> None:
    change(folder / "config.json", **config)
    with pytest.raises(UserError, match="mistralrs cannot load") as caught:
        load(EngineOptions("m", folder))
    assert re.search(why, caught.value.line())
    assert "\n" not in caught.value.line()


def test_files_that_are_broken_are_explained(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="mistralrs cannot load"):
        load(EngineOptions("m", folder))
    (folder / "x.gguf").write_bytes(b"no GGUF at all")
    with pytest.raises(UserError, match="mistralrs cannot load"):
        load(EngineOptions("m", folder / "x.gguf"))
