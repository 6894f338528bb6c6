"""What the engine is told, which file it takes, how large its cache is, how long its steps are. No llama.cpp needed."""

from pathlib import Path
from typing import Any

import pytest

from dynamod.engine.llamacpp.arguments import LlamaCppArguments, arguments_of
from dynamod.engine.llamacpp.files import gguf_file
from dynamod.engine.llamacpp.sizing import StepBudget, cell_bytes, cells_for
from dynamod.engine.names import ENGINES, canonical, check_arguments
from dynamod.message.errors import UserError


def test_names_of_others_are_known() -> None:
    assert {canonical(name) for name in ("llamacpp", "llama_cpp", "llama.cpp")} == {"llamacpp"}
    assert ENGINES["llamacpp"].extra == "llama_cpp"
    given = {"n-batch": 64, "n_parallel": 8, "num_gpu_blocks": 100, "flash-attention": False, "type_k": "q8_0"}
    assert arguments_of(given, 32) == LlamaCppArguments(
        max_num_batched_tokens=64, max_num_seqs=8, num_blocks=100, flash_attn=False, cache_type_k="q8_0", block_size=32
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"n_cxt": 1}, "n_cxt: unknown key; did you mean 'n_ctx'? known keys: block_size, cache_type_k"),
        ({"n_ctx": 0}, "n_ctx: expected `int` >= 1, got 0".replace("`", "")),
        ({"n_threads": "many"}, "n_threads: expected"),
        ({"n_batch": 512, "max_num_batched_tokens": 512}, "given twice"),
        ({"n_ctx": 512, "num_blocks": 4}, "give one of them"),
        ({"n_ctx": 16}, "not even two blocks"),
        ({"n_batch": 8}, "max_num_seqs 32"),
        ({"block_size": 32}, "kv_cache_block_size is 16"),
        ({"flash_attn": False, "cache_type_v": "q8_0"}, "needs flash_attn"),
        ({"flash_attn": "maybe"}, "flash_attn"),
        ({"max_num_seqs": 257}, "max_num_seqs"),
        ({"flash_attn": "off", "cache_type_v": "q8_0"}, "needs flash_attn"),
        ({"rope_scale": 2, "rope_freq_scale": 0.5}, "one by it: give one of them"),
        ({"rope_scaling": "longrope"}, "rope_scaling"),
        ({"rope_scale": 0}, "rope_scale: expected"),
        ({"split_mode": "rows"}, "split_mode"),
        ({"tensor_split": "3,one"}, "'3,one' is no list of numbers"),
        ({"tensor_split": [0, 0]}, "no shares of a model"),
        ({"override_tensor": "exps"}, "'exps' is not of the form PATTERN=BUFFER"),
        ({"override_kv": "a=int:x"}, "'a=int:x' is not of the form KEY=int|float|bool|str:VALUE"),
        ({"kv_overrides": ["a=bool:yes"]}, "not of the form"),
        ({"kv_overrides": ["a=str:" + 128 * "x"]}, "1 to 127 bytes"),
        ({"n_cpu_moe": -1}, "n_cpu_moe"),
        ({"kv_host_gb": -0.5}, "kv_host_gb: expected float >= 0.0, got -0.5"),
        ({"kv_host_gb": float("inf")}, "kv_host_gb: inf GB, but"),
        ({"kv_disk_gb": 1e6}, "kv_disk_gb: 1e+06 GB, but"),
        ({"kv_disk_gb": 0.01, "kv_disk_path": f"{__file__}/kv"}, "test_parts.py/kv cannot be written"),
        ({"kv_disk_gb": 0.01, "kv_disk_path": 5}, "kv_disk_path: expected str, got 5"),
        ({"kv_offload_after": 0}, "kv_offload_after: expected int >= 1, got 0"),
        ({"kv_host_gb": 0.01, "enable_prefix_caching": False}, "enable_prefix_caching: off, but tiers"),
    ],
)
def test_wrong_arguments_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        check_arguments("llama.cpp", given, 16)
    assert words in error.value.line()


def test_words_of_llamacpp_are_taken() -> None:
    given = {"ctx-size": 4096, "parallel": 4, "batch-size": 64, "ngl": 10, "threads": 2, "flash-attn": "on"}
    assert arguments_of(given) == LlamaCppArguments(
        n_ctx=4096, max_num_seqs=4, max_num_batched_tokens=64, n_gpu_layers=10, n_threads=2, flash_attn="on"
    )
    assert [LlamaCppArguments(flash_attn=value).flash for value in ("auto", "on", "off", True, False)] == [
        *(None, True, False, True, False)
    ]
    assert LlamaCppArguments(rope_scale=4).stretch == LlamaCppArguments(rope_freq_scale=0.25).stretch == 4
    assert LlamaCppArguments(rope_scale=4, rope_scaling="none").stretch == LlamaCppArguments().stretch == 1


def test_the_file_of_a_folder(tmp_path: Path) -> None:
    tmp_path /= "model"
    tmp_path.mkdir()

    def refused(words: str) -> None:
        with pytest.raises(UserError) as error:
            gguf_file(tmp_path)
        assert words in error.value.line()

    refused("has none; give a .gguf file")
    (tmp_path.parent / "near.gguf").touch()
    refused(f"has none; did you mean `{tmp_path.parent}/near.gguf`? give a .gguf file")
    (tmp_path / "model.safetensors").touch()
    refused("only safetensors")
    for name in ("mmproj-f16.gguf", "m-00001-of-00002.gguf"):
        (tmp_path / name).touch()
    refused("put m-00002-of-00002.gguf next to it")
    (tmp_path / "m-00002-of-00002.gguf").touch()
    assert gguf_file(tmp_path) == gguf_file(tmp_path / "m-00002-of-00002.gguf") == tmp_path / "m-00001-of-00002.gguf"
    (tmp_path / "other.gguf").touch()
    refused("name one: m-00001-of-00002.gguf, other.gguf")
    assert gguf_file(tmp_path / "other.gguf") == tmp_path / "other.gguf"


def test_cells() -> None:
    def cells(context: int | None = None, free: int = 2**40, **given: Any) -> int:
        return cells_for(LlamaCppArguments(**given), 2048, 1000, context, free)

    assert cells() == 4 * 2048
    assert cells(1000) == 4000
    assert cells(3000) == 8192, "four contexts have an upper limit"
    assert cells(131072) == 131072, "and a long one is there once"
    assert cells(free=12_000_000) == 3008, "a quarter of the memory, in whole blocks"
    assert cells(free=0) == 512
    assert cells(1500, free=0) == 1504, "what a user asks for comes first"
    assert cells(n_ctx=1000) == 992
    assert cells(num_blocks=10, block_size=32) == 320
    with pytest.raises(UserError, match="992 KV cells are fewer than one context of 1500"):
        cells(1500, n_ctx=1000)


@pytest.mark.parametrize(
    ("keys", "arguments", "expected"),
    [
        ({}, {}, 4 * 4 * (16 + 16) * 2),  # 4 layers, 4 heads of 16, 2 bytes
        ({"attention.head_count_kv": 2}, {}, 4 * 2 * (16 + 16) * 2),
        ({"attention.head_count_kv": 2, "attention.key_length": 32, "attention.value_length": 24}, {}, 4 * 2 * 56 * 2),
        ({}, {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}, 4 * 4 * 16 * (8.5 + 4.5) / 8),
        ({"attention.head_count_kv": [0, 2, 0, 4]}, {}, 6 * 32 * 2),  # LFM2, Nemotron-H, Jamba
        ({"attention.head_count": [4, 4, 2, 2], "attention.head_count_kv": [4, 4, 2, 2]}, {}, 12 * 32 * 2),
        ({"attention.head_count_kv": 1, "attention.key_length": 576, "attention.key_length_mla": 192}, {}, 4 * 576 * 2),
        ({"attention.shared_kv_layers": 1}, {}, 3 * 4 * 32 * 2),  # Gemma 3n, 4
        ({"attention.key_length": 16, "attention.key_length_swa": 32}, {}, 4 * 4 * 48 * 2),
        ({"full_attention_interval": 4}, {}, 4 * 32 * 2),  # Qwen3-Next, 3.5
        ({"attention.head_count_kv": 0}, {}, 0),  # Mamba
    ],
)
def test_bytes_of_a_cell(keys: dict[str, Any], arguments: dict[str, Any], expected: float) -> None:
    base = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4}
    metadata = {"general.architecture": "x", **{f"x.{key}": value for key, value in {**base, **keys}.items()}}
    assert cell_bytes(metadata, LlamaCppArguments(**arguments)) == expected
    assert cell_bytes({}, LlamaCppArguments()) == 0


def test_steps_are_as_long_as_earlier_ones_allow() -> None:
    step_budget = StepBudget(0.5, 16, 512)
    assert step_budget.chunk(decoding=True) == 64, "nothing is known yet"
    step_budget.guess(80)
    assert step_budget.chunk(decoding=True) == 40
    step_budget.took(100, 1.0)
    assert (step_budget.chunk(decoding=True), step_budget.chunk(decoding=False)) == (50, 200), "it was a guess"
    step_budget.took(3, 1.0)
    assert step_budget.rate == 100, "too few to say anything"
    for _ in range(20):
        step_budget.took(500, 0.1)
    assert step_budget.chunk(decoding=True) == 512
    for _ in range(40):
        step_budget.took(16, 10.0)
    assert step_budget.chunk(decoding=False) == 16
