import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Reference

from dynamod.message.errors import UserError
from dynamod.preprocess.card import read_card
from dynamod.preprocess.source import open_source

from .conftest import CHATML, bytes_gguf, write_folder


def test_a_folder_makes_a_card(bytes_folder: Path) -> None:
    card = read_card(bytes_folder, name="m", kv_cache_block_size=32, engine="echo", created=5)
    assert (card.name, card.path, card.config_path, card.engine) == ("m", str(bytes_folder), "", "echo")
    assert (card.context_length, card.kv_cache_block_size, card.created) == (512, 32, 5)
    assert (card.eos_token_ids, card.bos_token_id) == ((2, 0), 0)
    assert card.sampling_defaults == {"temperature": 0.6, "top_p": 0.9, "top_k": 20.0}
    assert len(card.mdc_sum) == 64
    assert int(card.mdc_sum, 16)


def test_a_gguf_file_makes_a_card(tmp_path: Path, bytes_reference: Reference) -> None:
    path = bytes_gguf(
        tmp_path / "x.gguf", bytes_reference, chat_template=CHATML, bos_token_id=0, eot_token_id=1, sampling_temp=0.7
    )
    card = read_card(path, name="m")
    assert (card.context_length, card.eos_token_ids, card.bos_token_id) == (2048, (2, 1, 0), 0)
    assert card.sampling_defaults == {"temperature": pytest.approx(0.7)}
    source = open_source(path)
    assert source.templates == {"default": CHATML}
    assert source.tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}


def test_all_sampling_defaults_of_a_gguf_file(tmp_path: Path, bytes_reference: Reference) -> None:
    """By the writer of llama.cpp's own package, so that the names of the keys are its."""
    given = {"temp": 0.5, "top_p": 0.25, "top_k": 20, "min_p": 0.125, "penalty_repeat": 1.5}
    extra = {f"sampling_{name}": value for name, value in given.items()}
    card = read_card(bytes_gguf(tmp_path / "x.gguf", bytes_reference, **extra), name="m")
    assert card.sampling_defaults == {
        "temperature": 0.5, "top_p": 0.25, "top_k": 20.0, "min_p": 0.125, "repetition_penalty": 1.5,
    }  # fmt: skip


def test_the_end_of_a_turn_is_found_by_its_text(tmp_path: Path, bytes_reference: Reference) -> None:
    path = bytes_gguf(tmp_path / "x.gguf", bytes_reference, eos_token_id=0)
    assert read_card(path, name="m").eos_token_ids == (0, 2)


def test_several_templates_of_a_gguf_file(tmp_path: Path, bytes_reference: Reference) -> None:
    templates = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    path = bytes_gguf(tmp_path / "x.gguf", bytes_reference, chat_template=templates)
    assert open_source(path).templates == {"default": "a", "tool_use": "b"}


def test_config_describes_weights_that_lie_elsewhere(
    tmp_path: Path, bytes_folder: Path, bytes_reference: Reference
) -> None:
    weights = bytes_gguf(tmp_path / "x.gguf", bytes_reference)
    for config in (bytes_folder, bytes_folder / "config.json"):
        card = read_card(weights, name="m", config=config)
        assert (card.path, card.config_path, card.context_length) == (str(weights), str(bytes_folder), 512)
        assert card.mdc_sum == read_card(bytes_folder, name="n").mdc_sum


@pytest.mark.parametrize(
    ("config", "tokenizing", "length"),
    [
        ({"max_position_embeddings": 64}, {"model_max_length": 32}, 64),
        ({"text_config": {"max_position_embeddings": 128, "eos_token_id": 7}}, {}, 128),
        ({"n_positions": 1024}, {}, 1024),
        ({}, {"model_max_length": 4096}, 4096),
        ({}, {"model_max_length": 1e30}, 0),
        ({}, {}, 0),
    ],
)
def test_context_lengths(
    tmp_path: Path, bytes_reference: Reference, config: dict[str, Any], tokenizing: dict[str, Any], length: int
) -> None:
    write_folder(tmp_path, bytes_reference, config=config, tokenizer_config=tokenizing)
    card = read_card(tmp_path, name="m")
    assert card.context_length == length
    assert card.eos_token_ids == ((7,) if "text_config" in config else ())


def test_context_length_may_only_shrink(bytes_folder: Path, tmp_path: Path, bytes_reference: Reference) -> None:
    assert read_card(bytes_folder, name="m", context_length=100).context_length == 100
    with pytest.raises(UserError, match=r"513.*512"):
        read_card(bytes_folder, name="m", context_length=513)
    with pytest.raises(UserError, match="too small"):
        read_card(bytes_folder, name="m", context_length=0)
    write_folder(tmp_path, bytes_reference, config={})
    assert read_card(tmp_path, name="m", context_length=100).context_length == 100


def test_greedy_generation_defaults(tmp_path: Path, bytes_reference: Reference) -> None:
    generation = {"do_sample": False, "temperature": 0.6, "top_p": 0.9}
    write_folder(tmp_path, bytes_reference, config={}, generation_config=generation)
    assert read_card(tmp_path, name="m").sampling_defaults == {"temperature": 0.0}
    write_folder(tmp_path, bytes_reference, generation_config={"min_p": 0.05, "repetition_penalty": 1.1, "top_k": None})
    assert read_card(tmp_path, name="m").sampling_defaults == {"min_p": 0.05, "repetition_penalty": 1.1}


def test_checksum_follows_content_not_place(tmp_path: Path, bytes_folder: Path) -> None:
    original = read_card(bytes_folder, name="m").mdc_sum
    copy = tmp_path / "copy"
    shutil.copytree(bytes_folder, copy)
    (copy / "README.md").write_text("not part of it")
    assert read_card(copy, name="other", kv_cache_block_size=64).mdc_sum == original
    changed = {read_card(copy, name="m", context_length=100).mdc_sum}
    (copy / "chat_template.jinja").write_text(CHATML + "x")
    changed.add(read_card(copy, name="m").mdc_sum)
    (copy / "chat_template.jinja").unlink()
    text = (copy / "tokenizer.json").read_text()
    (copy / "tokenizer.json").write_text(text + "\n")
    changed.add(read_card(copy, name="m").mdc_sum)
    (copy / "tokenizer.json").write_text(text)
    (copy / "generation_config.json").write_text('{"eos_token_id": 1}')
    changed.add(read_card(copy, name="m").mdc_sum)
    assert len({original, *changed}) == 5


def test_gguf_checksum_follows_content(tmp_path: Path, bytes_reference: Reference) -> None:
    first = read_card(bytes_gguf(tmp_path / "a.gguf", bytes_reference), name="m").mdc_sum
    assert read_card(bytes_gguf(tmp_path / "b.gguf", bytes_reference), name="m").mdc_sum == first
    assert read_card(bytes_gguf(tmp_path / "c.gguf", bytes_reference, "qwen2"), name="m").mdc_sum != first
    assert read_card(bytes_gguf(tmp_path / "d.gguf", bytes_reference, chat_template="x"), name="m").mdc_sum != first


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named_with_its_purpose(tmp_path: Path, bytes_folder: Path, missing: str) -> None:
    shutil.copytree(bytes_folder, tmp_path / "m")
    (tmp_path / "m" / missing).unlink()
    purpose = {"config.json": "context length", "tokenizer.json": "text becomes tokens"}[missing]
    with pytest.raises(UserError, match=rf"^{missing} \(.*{purpose}.*missing from the model folder .*/m;.*generation"):
        read_card(tmp_path / "m", name="m")


def test_unreadable_things_are_user_errors(tmp_path: Path, bytes_folder: Path) -> None:
    shutil.copytree(bytes_folder, tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("{ not json")
    with pytest.raises(UserError, match=r"config\.json is not a JSON object"):
        read_card(tmp_path / "m", name="m")
    with pytest.raises(UserError, match="does not exist"):
        read_card(tmp_path / "none", name="m")
    (tmp_path / "file.bin").write_bytes(b"1234")
    with pytest.raises(UserError, match="neither a folder nor a GGUF file"):
        read_card(tmp_path / "file.bin", name="m")
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "m" / "tokenizer.json").write_text("[]")
    with pytest.raises(UserError, match="not a tokenizer file"):
        read_card(tmp_path / "m", name="m")


def test_where_templates_come_from(tmp_path: Path, bytes_reference: Reference) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    write_folder(tmp_path, bytes_reference, config={}, tokenizer_config={"chat_template": named})
    assert open_source(tmp_path).templates == {"default": "a", "tool_use": "b"}
    (tmp_path / "chat_template.jinja").write_text("c")
    assert open_source(tmp_path).templates == {"default": "c", "tool_use": "b"}
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert open_source(tmp_path).templates == {}
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "d"}))
    assert open_source(tmp_path).templates == {"default": "d"}


def test_special_tokens_from_their_own_file(tmp_path: Path, bytes_reference: Reference) -> None:
    write_folder(
        tmp_path,
        bytes_reference,
        config={"eos_token_id": None},
        special_tokens_map={"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}},
        tokenizer_config={"added_tokens_decoder": {"77": {"content": "<extra>"}}, "bos_token": "<extra>"},
    )
    card = read_card(tmp_path, name="m")
    assert (card.eos_token_ids, card.bos_token_id) == ((2,), 77)
    assert open_source(tmp_path).tokens["pad_token"] == "<|endoftext|>"
