"""A tier in memory of the host with real vLLM and SGLang: what falls out of the KV cache comes back; refusals."""

import json
import os
import random
import subprocess
from typing import Any

import pytest

from dynamod.engine.sglang.tiers import with_tier as sglang
from dynamod.engine.vllm.tiers import with_tier as vllm
from dynamod.kvcache.tier_settings import TierSettings

from .test_heavy import ENV, SGLANG, START, VLLM, External, installed, ready

pytestmark = pytest.mark.heavy

BLOCK, BLOCKS, LENGTH = 32, 14, 300
"""Tokens of a block; blocks of the KV cache: room for one prompt and its answer; tokens of a prompt."""
FULL = LENGTH // BLOCK
CPU = {"SGLANG_USE_CPU_ENGINE": "1"}


def asked(machine: Any, url: str, seed: int) -> tuple[str, list[float]]:
    """The answer with its log probabilities, to a prompt of noise."""
    prompt = random.Random(seed).choices(range(300, 1000), k=LENGTH)
    body = {"model": "sample", "prompt": prompt, "max_tokens": 4, "logprobs": 1, "temperature": 0}
    status, text = machine.ask(url, "/v1/completions", {**body, "nvext": {"ignore_eos": True}}, START)
    assert status == 200, text
    choice = json.loads(text)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def tier(machine: Any) -> dict[str, Any]:
    """What `dynamo top` shows of the worker's tier, and its rate of hits."""
    shown = machine.run("dynamo", "top", "--once", "--output", "json").out
    [worker] = [one["worker"] for one in json.loads(shown)["processes"] if one["worker"]]
    return {**worker["host"], "hit_rate": worker["hit_rate"]}


def test_vllm_has_a_prefix_back_from_memory_of_the_host(machine: Any) -> None:
    engine = installed(VLLM)
    given = {"kv_host_gb": 0.1, "num_gpu_blocks_override": BLOCKS, "max_model_len": BLOCK * (BLOCKS - 2)}
    words = (*engine.run, "--kv-cache-block-size", BLOCK, "--extra-engine-args", json.dumps(given))
    command = machine.start("dynamo-run", *words, **ENV)
    url = ready(command)
    machine.until(lambda: machine.serves(url))
    asked(machine, url, 1)
    text, logprobs = asked(machine, url, 1)
    machine.until(lambda: tier(machine)["blocks"] == FULL)
    for seed in (2, 3):
        asked(machine, url, seed)
    assert tier(machine)["hits"] == 0
    assert asked(machine, url, 1) == (text, pytest.approx(logprobs, abs=2e-4))
    machine.until(lambda: tier(machine)["hits"] == FULL)
    assert tier(machine)["blocks"] == FULL, "others were asked for once"
    assert tier(machine)["bytes"] > 0
    assert tier(machine)["hit_rate"] == pytest.approx(2 * FULL * BLOCK / (5 * LENGTH), abs=0.03)
    command.end()


CHECKS = {
    "vllm": """
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

EngineArgs(model="x", **values)
config = KVTransferConfig(**values["kv_transfer_config"])
assert config.kv_connector == "OffloadingConnector"
assert issubclass(OffloadingSpecFactory.get_spec_cls(config.kv_connector_extra_config), CPUOffloadingSpec)
""",
    "sglang": """
import argparse
from sglang.srt.server_args import ServerArgs

parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
words = [word for name, value in values.items() for word in ("--" + name.replace("_", "-"), str(value))]
words.remove("True")
found = vars(parser.parse_args(["--model-path", "x", *words]))
assert {name: found[name] for name in values} == values
""",
}
"""What the engines make of `values`, by their own classes."""


@pytest.mark.parametrize(
    ("engine", "with_tier", "cpu"), [(VLLM, vllm, True), (VLLM, vllm, False), (SGLANG, sglang, False)]
)
def test_the_engines_know_what_they_are_given(engine: External, with_tier: Any, cpu: bool) -> None:
    values = with_tier({}, TierSettings(kv_host_gb=2.0), "aggregated", cpu=cpu)
    program = f"import json, sys\nvalues = json.loads(sys.argv[1])\n{CHECKS[engine.name]}"
    command = [installed(engine).python, "-c", program, json.dumps(values)]
    done = subprocess.run(command, env={**os.environ, **CPU}, capture_output=True, text=True, timeout=START)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("engine", "given", "says"),
    [
        (SGLANG, {"kv_host_gb": 1}, "sglang argument kv_host_gb: SGLang's tier needs a GPU"),
        (SGLANG, {"enable_hierarchical_cache": True}, "sglang argument enable_hierarchical_cache: SGLang's tier needs"),
        (VLLM, {"kv_offloading_size": 1}, "vllm argument kv_offloading_size: vLLM's own tier needs a GPU"),
    ],
)
def test_what_cannot_be_on_a_cpu_is_one_line(machine: Any, engine: External, given: dict[str, Any], says: str) -> None:
    words = (*installed(engine).run, "--extra-engine-args", json.dumps(given))
    ended = machine.start("dynamo-run", *words, **ENV).wait(START)
    assert ended.code == 1
    [line] = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert says in line
