"""What the mocker can be told, and how a mistake in it is answered."""

from typing import Any

import pytest

from dynamod.engine.mocker.arguments import MockerArguments, arguments_of
from dynamod.engine.names import check_arguments
from dynamod.graph.typed import validate
from dynamod.message.errors import UserError
from dynamod.worker.settings import WorkerSettings


def test_the_defaults_are_the_originals() -> None:
    made = arguments_of({})
    assert made == MockerArguments()
    assert (made.block_size, made.num_gpu_blocks, made.max_num_seqs, made.max_num_batched_tokens) == (
        64,
        16384,
        256,
        8192,
    )
    assert (made.watermark, made.speedup_ratio, made.preemption_mode, made.timing) == (0.01, 1.0, "lifo", "later")
    assert made.enable_prefix_caching
    assert made.enable_chunked_prefill
    assert made.room == 16220 * 64


def test_keys_with_dashes_and_a_year_that_yaml_reads_as_a_number() -> None:
    made = arguments_of({"num-gpu-blocks": 10, "timing": 2025, "speedup_ratio": 3, "startup_time": None})
    assert (made.num_gpu_blocks, made.timing, made.speedup_ratio, made.startup_time) == (10, "2025", 3.0, None)


def test_the_block_size_of_the_worker_counts() -> None:
    assert arguments_of({}, 32).block_size == 32
    assert arguments_of({"block_size": 32}, 32).block_size == 32
    with pytest.raises(UserError, match="block_size: 16, but kv_cache_block_size is 32"):
        arguments_of({"block_size": 16}, 32)
    config: dict[str, Any] = {"engine": "mocker", "model": "sample", "engine_args": {"num_gpu_blocks": 5}}
    assert validate(WorkerSettings, config, "Worker").options().kv_cache_block_size is None
    options = validate(WorkerSettings, {**config, "kv_cache_block_size": 8}, "Worker").options()
    assert arguments_of(options.arguments, options.kv_cache_block_size).block_size == 8


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_gpu_blcoks": 5}, "num_gpu_blcoks: unknown key"),
        ({"num_gpu_blocks": 0}, "num_gpu_blocks: expected int >= 1, got 0"),
        ({"num_gpu_blocks": "many"}, "num_gpu_blocks: expected int, got 'many'"),
        ({"max_num_seqs": True}, "max_num_seqs: expected int, got True"),
        ({"max_num_batched_tokens": [1]}, "max_num_batched_tokens: expected int, got array"),
        ({"watermark": 1}, "watermark: expected float < 1.0, got 1"),
        ({"speedup_ratio": -1}, "speedup_ratio: expected float >= 0.0, got -1"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching: expected bool, got 'no'"),
        ({"preemption_mode": "random"}, "preemption_mode: invalid enum value 'random'"),
        ({"timing": "2026"}, "timing: invalid enum value '2026'"),
        ({"startup_time": -1}, "startup_time: expected float >= 0.0, got -1"),
        ({"dp_size": 0}, "dp_size: expected int >= 1, got 0"),
        ({"num_gpu_blocks": 1}, "watermark: 0.01 of num_gpu_blocks 1 leaves no block"),
        ({"block-size": 1, "block_size": 1}, "block_size: given twice"),
    ],
)
def test_a_mistake_is_one_line_with_the_key_and_the_known_ones(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        check_arguments("mocker", given, None)
    line = caught.value.line()
    assert line.startswith(f"mocker argument {says}")
    assert "\n" not in line
    for key in MockerArguments.__struct_fields__:
        assert key in caught.value.hint


def test_other_engines_have_no_check() -> None:
    check_arguments("echo_core", {"anything": 1}, None)
