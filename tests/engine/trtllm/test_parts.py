"""What is decided without TensorRT-LLM: arguments, requests, logprobs, KV events."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.engine.adapter.blocks import EngineBlocks
from dynamod.engine.base import EngineOptions
from dynamod.engine.names import canonical
from dynamod.engine.trtllm.arguments import check, llm_arguments
from dynamod.engine.trtllm.events import Events
from dynamod.engine.trtllm.request import logprobs, sampling
from dynamod.kvcache.hashes import block_hashes
from dynamod.message import tokens
from dynamod.message.errors import BadRequest, UserError
from dynamod.message.worker import Generate, Sampling, Stops

from . import recorded_double as double

SIZE = 4


def options(**fields: Any) -> EngineOptions:
    return EngineOptions("m", Path("/m"), **fields)


def request(stops: Stops = Stops(), eos: tuple[int, ...] = (2, 3), prior: str = "", **fields: Any) -> Generate:
    ids = tokens.pack(map(int, prior.split()))
    return Generate("r", "m", tokens.pack([1]), stops, Sampling(**fields), eos, prior_output=ids)


def test_its_names() -> None:
    assert {canonical(name) for name in ("trtllm", "tensorrtllm", "tensorrt_llm", "tensorrt-llm")} == {"trtllm"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"arguments": {"model": "x"}}, "argument model: the model is named for dynamod"),
        ({"arguments": {"max-seq-len": 5}, "context_length": 6}, "max_seq_len: 5, but --context-length is 6"),
        (
            {"arguments": {"tensor_parallel_size": 4}, "tensor_parallel_size": 2},
            "tensor_parallel_size: 4, but --tensor-parallel-size is 2",
        ),
        (
            {"arguments": {"kv_cache_config": {"tokens_per_block": 64}}, "kv_cache_block_size": 32},
            "tokens_per_block: 64, but kv_cache_block_size is 32",
        ),
        ({"arguments": {"kv_cache_config": 3}}, "kv_cache_config: a mapping is needed"),
    ],
)
def test_arguments_that_disagree(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        llm_arguments(options(**fields))


def test_without_reuse_of_blocks_there_are_no_events() -> None:
    made = llm_arguments(options(arguments={"kv-cache-config": {"enable_block_reuse": False}}))
    assert made["kv_cache_config"] == {"enable_block_reuse": False, "event_buffer_max_size": 0}
    check({"tensor_parallel_size": 8}, None)


def test_a_request_as_sampling_params() -> None:
    assert sampling(request(eos=(2,), temperature=0.0, top_p=0.5), 9) == {
        "top_k": 1,
        "end_id": 2,
        "pad_id": 2,
        "max_tokens": 9,
        "ignore_eos": False,
        "detokenize": False,
        "include_stop_str_in_output": True,
    }
    stops = Stops(min_tokens=3, stop_token_ids_hidden=(8, 2))
    whole = sampling(request(stops, prior="4", seed=7, top_k=-1, top_p=0.9, logprobs=2, presence_penalty=1.0), 9)
    assert (whole["temperature"], whole["top_p"], whole["max_tokens"], whole["min_tokens"]) == (1.0, 0.9, 8, 2)
    assert (whole["end_id"], whole["stop_token_ids"], whole["logprobs"], "top_k" in whole) == (2, [3, 8], 2, False)
    assert whole["seed"] not in (7, sampling(request(prior="4 5", seed=7), 9)["seed"])
    forever = sampling(request(Stops(ignore_eos=True), seed=-5), 9)
    assert (forever["ignore_eos"], "stop_token_ids" in forever, forever["seed"] >= 0) == (True, False, True)
    assert sampling(request(eos=()), 9)["end_id"] == -1
    assert whole.keys() | forever.keys() <= double.KNOWN_PARAMETERS
    with pytest.raises(BadRequest, match="logit_bias"):
        sampling(request(logit_bias={5: 1.0}), 9)


def test_a_token_that_is_not_among_the_best_has_its_logprob_too() -> None:
    entry = {5: SimpleNamespace(logprob=-9.0), 6: SimpleNamespace(logprob=-0.1)}
    assert logprobs([5], [entry], 1) == ((-9.0,), (((6, -0.1),),))
    assert logprobs([5], [entry], 0) == ((-9.0,), ())


def ids_of(block: int) -> list[int]:
    return [block * 10 + place for place in range(SIZE)]


STEPS = st.lists(st.tuples(st.sampled_from("+-!"), st.integers(0, 1), st.integers(1, 3)), max_size=30)


@given(STEPS)
def test_what_is_said_twice_is_once_there(steps: list[tuple[str, int, int]]) -> None:
    """Against plain sets: blocks that are stored again, or removed again, and events that were lost, of two ranks."""
    blocks, events = EngineBlocks(SIZE, lambda _event: None), Events()
    held: list[set[int]] = [set(), set()]
    numbers = [0, 0]
    for what, rank, block in steps:
        numbers[rank] += 1
        if what == "!" and numbers[rank] > 1:
            numbers[rank] += 1
            held[rank].clear()
        if what == "-":
            said = double.removed(numbers[rank], block, attention_dp_rank=rank)
            held[rank].discard(block)
        else:
            said = double.stored(numbers[rank], None, (block, ids_of(block)), attention_dp_rank=rank)
            held[rank].add(block)
        for where, event in events.read(said, SIZE):
            blocks.apply(where, event)
    wanted = {block_hashes(tokens.pack(ids_of(block)), SIZE)[0] for one in held for block in one}
    assert set(blocks.names) == wanted


def test_only_the_widest_window_and_plain_tokens_count() -> None:
    def read(said: dict[str, Any]) -> list[str]:
        return [type(event).__name__ for _, event in events.read(said, SIZE)]

    events = Events()
    assert read(double.stored(0, None, (1, ids_of(1)), window_size=128)) == ["BlockStored"]
    assert read(double.stored(1, None, (1, ids_of(1)))) == ["AllBlocksCleared", "BlockStored"]
    assert read(double.stored(2, None, (9, ids_of(1)), window_size=128)) == []
    image = double.stored(3, 1, (2, ids_of(2)), (3, ids_of(3)))
    image["data"]["blocks"][0]["tokens"][0]["token_extra_id"] = 5
    assert read(image) == []
    assert read(double.stored(4, 1, (2, ids_of(2)), (3, [1, 2]))) == ["BlockStored"]
    assert read(double.event(5, {"type": "updated", "block_hash": 1, "cache_level": {}})) == []
    assert read(double.removed(6, 2, 77)) == ["BlockRemoved"]
    assert read(double.removed(9, 1)) == ["AllBlocksCleared", "BlockRemoved"]
