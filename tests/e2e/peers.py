"""Workers that read blocks of each other, and what they have counted."""

import json
import random
from typing import Any

LONG, BLOCKS = 1500, 93
EXACT: dict[str, Any] = {
    "flash_attn": "off",
    "split_tail": True,
    "stepwise_continuation": True,
    "n_threads": 1,
    "num_blocks": 110,
    "max_num_seqs": 4,
    "step_seconds": 60.0,
}
"""llama.cpp with room for one long prompt, which no measured rate cuts: on a busy machine its logits would change."""


def noise(seed: int, length: int = LONG) -> list[int]:
    """A prompt of ids that were drawn."""
    return random.Random(seed).choices(range(300, 1000), k=length)


def serve(machine: Any, *flags: str, workers: int = 2, model: str = "sample.gguf", **arguments: Any) -> Any:
    """Workers behind the KV-aware router."""
    given = {**EXACT, **arguments}
    return machine.start(
        *("dynamo", "serve", "graphs.agg_router:Frontend", "--Frontend.port=0", "--Processor.router_mode=kv"),
        *("--Worker.engine=llamacpp", f"--Worker.model={model}", "--Worker.served_model_name=sample"),
        *(f"--Worker.ServiceArgs.workers={workers}", f"--Worker.engine_args={json.dumps(given)}"),
        *("--Processor.kv_peer_fetch=true", *flags),
        OMP_NUM_THREADS="1",
        DYNAMOD_HEARTBEAT_TIMEOUT="20",
    )


def places(machine: Any, url: str, count: int = 2) -> dict[str, int]:
    """The instance of each worker, by the name of its process."""

    def found() -> list[dict[str, Any]]:
        return list(json.loads(machine.ask(url, "/health")[1])["instances"])

    machine.until(lambda: len(found()) == count)
    return dict(sorted((one["process"], one["instance_id"]) for one in found()))


def body(prompt: list[int], instance: int | None = None, **fields: Any) -> dict[str, Any]:
    """A request for four tokens with their log probabilities."""
    nvext = {"ignore_eos": True, **({} if instance is None else {"backend_instance_id": instance})}
    return {
        "model": "sample",
        "prompt": prompt,
        "max_tokens": 4,
        "logprobs": 2,
        "temperature": 0,
        **fields,
        "nvext": nvext,
    }


def asked(machine: Any, url: str, prompt: list[int], instance: int | None = None, **fields: Any) -> Any:
    """The text, and all log probabilities."""
    status, text = machine.ask(url, "/v1/completions", body(prompt, instance, **fields))
    assert status == 200, text
    choice = json.loads(text)["choices"][0]
    logprobs = choice["logprobs"]
    return choice["text"], logprobs and (logprobs["token_logprobs"], logprobs["top_logprobs"])


def statistics(machine: Any, process: str) -> dict[str, Any]:
    """Of a worker."""
    for one in machine.raw("GET", "/v1/inspect")[1]:
        details = one.get("details") or {}
        if one["process"] == process and "feeds" in details:
            return dict(details)
    raise AssertionError(f"{process} says nothing")


def read(machine: Any, process: str) -> dict[str, Any]:
    """What a worker has read of others."""
    handoff = statistics(machine, process)["handoff"] or {}
    return dict(handoff.get("peers") or {"transfers": 0, "blocks": 0, "failures": {}})
