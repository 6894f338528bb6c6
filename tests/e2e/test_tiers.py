"""KV tiers behind the frontend: a prefix that fell out of the device comes back, after a restart too; routers know."""

import importlib.util
import itertools
import json
import os
import random
import re
import signal
import time
from typing import Any

import pytest

llama_cpp = pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs the extra llama_cpp")

ARGUMENTS = {"flash_attn": "off", "split_tail": True, "n_threads": 1, "num_blocks": 110, "max_num_seqs": 4}
"""Room for one long prompt."""
LONG, BLOCKS = 1500, 93


def asked(machine: Any, url: str, seed: int, length: int = LONG) -> Any:
    """The answer with its log probabilities."""
    prompt = random.Random(seed).choices(range(300, 1000), k=length)
    body = {"model": "sample", "prompt": prompt, "max_tokens": 4, "logprobs": 2, "temperature": 0}
    status, text = machine.ask(url, "/v1/completions", {**body, "nvext": {"ignore_eos": True}})
    assert status == 200, text
    choice = json.loads(text)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def tier(machine: Any, name: str) -> dict[str, Any]:
    """Numbers of the worker's tier."""
    for one in machine.raw("GET", "/v1/inspect")[1]:
        found = (one.get("details") or {}).get("engine", {})
        if isinstance(found, dict) and found.get(f"{name}_tier"):
            return dict(found[f"{name}_tier"])
    return {}


def stored(machine: Any, name: str, count: int) -> None:
    machine.until(lambda: tier(machine, name).get("blocks", 0) >= count)


@llama_cpp
@pytest.mark.engine
def test_a_prefix_comes_back_from_memory_and_after_a_restart_from_files(machine: Any) -> None:
    arguments = json.dumps({**ARGUMENTS, "kv_disk_gb": 0.1, "kv_disk_path": "kv"})
    command = machine.start(
        *("dynamo", "serve", "-f", "configs/agg.yaml", "--Worker.engine=llamacpp", "--Common.model=sample.gguf"),
        *("--Worker.served_model_name=sample", "--Frontend.port=0", f"--Worker.engine_args={arguments}"),
        DYN_KVBM_CPU_CACHE_GB="0.05",
        OMP_NUM_THREADS="1",
    )
    url = command.ready()
    wanted = asked(machine, url, 1)
    assert asked(machine, url, 1) == wanted, "asked for twice"
    stored(machine, "host", BLOCKS)
    stored(machine, "disk", BLOCKS)
    asked(machine, url, 2, 1750)
    assert asked(machine, url, 1) == wanted
    assert (tier(machine, "host")["loaded"], tier(machine, "disk")["loaded"]) == (BLOCKS, 0)
    connection = machine.unix()
    connection.request("GET", "/v1/metrics")
    metrics = connection.getresponse().read().decode()
    connection.close()
    assert re.search(r"^dynamod_worker_engine_disk_tier_stored_total{.*} 93\.0$", metrics, re.M)
    assert re.search(r"^dynamod_worker_engine_host_tier_loaded_total{.*} 93\.0$", metrics, re.M)

    assert len(list((machine.folder / "kv").rglob("*.kv"))) == BLOCKS, "the command's folder"
    os.kill(machine.row("Worker")["pid"], signal.SIGKILL)
    machine.until(lambda: machine.serves(url) and tier(machine, "disk").get("stored") == 0)
    assert asked(machine, url, 1) == wanted
    assert (tier(machine, "disk")["loaded"], tier(machine, "host")["blocks"]) == (BLOCKS, BLOCKS)
    shown = machine.run("dynamo", "top", "--once", "--output", "json").out
    [worker] = [one["worker"] for one in json.loads(shown)["processes"] if one["worker"]]
    assert (worker["host"]["blocks"], worker["host"]["hits"]) == (BLOCKS, 0)
    assert (worker["disk"]["blocks"], worker["disk"]["hits"]) == (BLOCKS, BLOCKS)
    assert worker["disk"]["bytes"] == tier(machine, "disk")["bytes"] > 0
    assert tier(machine, "disk")["failed"] == 0
    command.end()


def test_a_request_goes_to_the_worker_that_has_its_prefix_in_a_tier(machine: Any) -> None:
    arguments = {"num_gpu_blocks": 30, "block_size": 16, "watermark": 0, "kv_host_gb": 0.01, "speedup_ratio": 10}
    command = machine.start(
        *("dynamo", "serve", "graphs.agg_router:Frontend", "-f", "configs/agg_router.yaml", "--Frontend.port=0"),
        *("--Worker.ServiceArgs.workers=2", f"--Worker.engine_args={json.dumps(arguments)}"),
    )
    url = command.ready()
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    for number in range(2):
        machine.begin(url, text(1), request=f"first-{number}", max_tokens=2).answer()
    home = decision(machine, "first-1")
    assert decided(home)["overlap"] > 0
    others = itertools.count(2)

    def loaded() -> bool:
        """Others need the device's room, each time; the events of workers reach the router a moment later."""
        for number in itertools.islice(others, 10):
            machine.begin(url, text(number), request=f"other-{number}", max_tokens=2).answer()
        time.sleep(0.2)
        machine.begin(url, text(1), request="again", max_tokens=2).answer()
        return bool(decided(decision(machine, "again"))["fetched"])

    machine.until(loaded)
    last = decision(machine, "again")
    assert last["chosen"] == home["chosen"]
    assert 0 < decided(last)["terms"]["fetch"] < decided(last)["fetched"], "by measured times"
    assert "FETCH x1" in machine.run("dynamo", "explain", "again").out
    assert tier(machine, "host")
    command.end()


def text(number: int) -> str:
    """About 20 blocks."""
    return f"{number} " + " ".join(f"w{number + place}" for place in range(120))


def decision(machine: Any, request: str) -> dict[str, Any]:
    machine.until(lambda: machine.raw("GET", f"/v1/requests/{request}/decision")[0] == 200)
    return dict(machine.raw("GET", f"/v1/requests/{request}/decision")[1][-1])


def decided(record: dict[str, Any]) -> dict[str, Any]:
    """The chosen candidate."""
    return next(dict(one) for one in record["candidates"] if one["instance"] == record["chosen"])


@llama_cpp
@pytest.mark.engine
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--kv-host-gb -1", "kv_host_gb: expected float >= 0.0, got -1"),
        ("--kv-host-gb 900000", "kv_host_gb: 900000 GB, but"),
        ("--kv-disk-gb 900000 --kv-disk-path .", "kv_disk_gb: 900000 GB, but"),
        ("--kv-disk-gb 1 --kv-disk-path file/below", "file/below cannot be written"),
        ("--kv-host-gb 0.1 --no-enable-prefix-caching", "enable_prefix_caching: off, but"),
    ],
)
def test_what_cannot_be_is_told_before_anything_starts(machine: Any, words: str, says: str) -> None:
    (machine.folder / "file").write_text("")
    line = machine.run("dynamo-run", "in=http", "out=llamacpp", "sample.gguf", "--", *words.split()).mistake()
    assert says in line
