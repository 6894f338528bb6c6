"""What is decided without SGLang: arguments, requests, logprobs."""

import json
from pathlib import Path
from typing import Any

import pytest

from dynamod.engine.base import EngineOptions
from dynamod.engine.sglang.arguments import NAMES, defaults
from dynamod.engine.sglang.request import logprobs, sampling
from dynamod.message import tokens
from dynamod.message.errors import UserError
from dynamod.message.worker import Generate, Sampling, Stops

KNOWN = ("model_path", "context_length", "page_size", "tp_size", "base_gpu_id", "dtype")


def test_flags_have_sglangs_names() -> None:
    options = EngineOptions(
        path=Path("/m"), context_length=64, kv_cache_block_size=32, tensor_parallel_size=2, base_gpu_id=4
    )
    assert NAMES.merged(options, KNOWN, {"dtype": "float32"}) == {
        "context_length": 64,
        "page_size": 32,
        "tp_size": 2,
        "base_gpu_id": 4,
        "dtype": "float32",
        "model_path": "/m",
    }
    with pytest.raises(UserError, match="sglang argument page_size: 16, but --kv-cache-block-size is 32"):
        NAMES.merged(options, KNOWN, {"page_size": 16})


def test_defaults_give_way() -> None:
    made = defaults({}, sockets="/run/x")
    assert "device" not in made
    assert made["page_size"] == 64
    assert json.loads(made["kv_events_config"])["replay_endpoint"] == "ipc:///run/x-tcp-replay:1"
    made = defaults({"page_size": 1, "disable_radix_cache": True}, sockets="/run/x", context=2048, cpu=True)
    assert (made["page_size"], made["max_total_tokens"], made["device"]) == (1, 8192, "cpu")
    assert made["kv_events_config"] is None, "its publisher that is called null takes no arguments"
    assert defaults({"max_total_tokens": 5}, sockets="", context=9**9, cpu=True)["max_total_tokens"] == 5
    assert defaults({}, sockets="", context=9**9, cpu=True)["max_total_tokens"] == 32768


def test_steps_are_measured_on_gpus() -> None:
    name = "forward_pass_metrics_ipc_name"
    assert name not in defaults({}, sockets="/run/x")
    assert defaults({"enable_forward_pass_metrics": True}, sockets="/run/x")[name] == "ipc:///run/x-steps"
    with pytest.raises(UserError, match="on GPUs only"):
        defaults({"enable_forward_pass_metrics": True}, sockets="/run/x", cpu=True)


def request(prior: tuple[int, ...] = (), stops: Stops = Stops(), **fields: Any) -> Generate:
    ids = tokens.pack((1, 2))
    return Generate("r", "m", ids, stops, Sampling(**fields), eos_token_ids=(9,), prior_output=tokens.pack(prior))


def test_a_request_as_sampling_parameters() -> None:
    made = sampling(request((5,), Stops(stop_token_ids_hidden=(7,)), temperature=0.0, top_k=0, logit_bias={3: 1.0}), 20)
    assert made == {
        "temperature": 0.0,
        "logit_bias": {"3": 1.0},
        "max_new_tokens": 19,
        "stop_token_ids": [7, 9],
        "ignore_eos": False,
    }
    assert sampling(request((), Stops(ignore_eos=True), seed=5), 20)["ignore_eos"] is True
    assert sampling(request((), Stops(min_tokens=20)), 20)["ignore_eos"] is True
    assert sampling(request((), Stops(min_tokens=19), seed=5), 20) == {
        "sampling_seed": 5,
        "max_new_tokens": 20,
        "stop_token_ids": [9],
        "ignore_eos": False,
    }


def test_logprobs_are_the_chosen_ones_and_the_best() -> None:
    meta = {
        "output_token_logprobs": [(-3.0, 8, None), (-0.2, 5, None)],
        "output_top_logprobs": [[(-0.1, 5, None), (-2.0, 6, None)], [(-0.2, 5, None), (-1.0, 8, None)]],
    }
    assert logprobs(meta, 2) == ((-3.0, -0.2), (((5, -0.1), (6, -2.0)), ((5, -0.2), (8, -1.0))))
    assert logprobs(meta, 0) == ((-3.0, -0.2), ())
