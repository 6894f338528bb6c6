"""KV tiers of llama.cpp behind the frontend: a prefix that fell out of the device comes back, and after a restart."""

import json
import os
import random
import re
import signal
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

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

    os.kill(machine.row("Worker")["pid"], signal.SIGKILL)
    machine.until(lambda: machine.serves(url) and tier(machine, "disk").get("stored") == 0)
    assert asked(machine, url, 1) == wanted
    assert (tier(machine, "disk")["loaded"], tier(machine, "host")["blocks"]) == (BLOCKS, BLOCKS)
    assert tier(machine, "disk")["failed"] == 0
    command.end()


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
