"""Graphs with prefill workers, and what they have counted."""

import json
import random
from typing import Any

LONG = " ".join(f"word{number}" for number in range(120))
"""Some 500 tokens."""
SLOW = {"block_size": 16, "max_num_batched_tokens": 64}
"""A prompt takes about ten iterations, a quarter of a second."""


def serve(
    machine: Any,
    *flags: str,
    graph: str = "disagg",
    engine: str = "mocker",
    arguments: dict[str, Any] = SLOW,
    **env: str,
) -> Any:
    """The shipped graph; prompts of more than 32 tokens are computed remotely."""
    return machine.start(
        "dynamo",
        *("serve", f"graphs.{graph}:Frontend", "-f", f"configs/{graph}.yaml", "--Frontend.port=0"),
        *(f"--Worker.engine={engine}", f"--PrefillWorker.engine={engine}", "--Processor.max-local-prefill-length=32"),
        *(f"--Worker.engine_args={json.dumps(arguments)}", f"--PrefillWorker.engine_args={json.dumps(arguments)}"),
        *flags,
        **{"DYNAMOD_HEARTBEAT_TIMEOUT": "1", **env},
    )


def unlike(machine: Any, engine: str, answering: dict[str, Any], computing: dict[str, Any]) -> str:
    """The URL of a frontend whose two workers differ; each has a command of its own, so nobody sees it before."""
    for pool, arguments in (("decode", answering), ("prefill", computing)):
        machine.start(
            "dynamo-run",
            *(f"in=dyn://m.{pool}.generate", f"out={engine}", "sample.gguf", "--model-name=sample"),
            *("--disaggregation-mode", pool, "--extra-engine-args", json.dumps(arguments)),
        ).ready()
    front = ("--http-port=0", "--max-local-prefill-length=32")
    url = str(machine.start("dynamo-run", "in=http", "out=auto", *front).ready())
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2)
    return url


def counts(machine: Any, url: str) -> dict[str, float]:
    """What the frontend has counted of prompts."""
    found: dict[str, float] = {}
    for line in machine.ask(url, "/metrics")[1].splitlines():
        if line.startswith("dynamo_frontend_model_") and "prefill" in line:
            name, _, value = line.rpartition(" ")
            short = name.partition("{")[0].removeprefix("dynamo_frontend_model_")
            found[short] = found.get(short, 0.0) + float(value)
    return found


def workers(machine: Any, *, without: str = "no process") -> list[dict[str, Any]]:
    """Statistics of all workers. `without`: in the name of a process whose workers are left out."""
    actors = [one for one in machine.raw("GET", "/v1/inspect")[1] if without not in one["process"]]
    return [one for actor in actors if (one := actor.get("details")) and "engine" in one and "feeds" in one]


def handoffs(machine: Any) -> dict[str, Any]:
    """Of the only worker that reads prompts of others. A prefill worker that is started again has no sessions yet."""
    found = [one["handoff"] for one in workers(machine, without="PrefillWorker") if one["handoff"]]
    (reader,) = [one for one in found if one["sessions"] is None]
    return dict(reader)


def all_sessions(machine: Any) -> list[dict[str, Any]]:
    """Of each prefill worker."""
    found = [one["handoff"]["sessions"] for one in workers(machine) if one["handoff"]]
    return [one for one in found if one]


def sessions(machine: Any) -> dict[str, Any]:
    """Of the only prefill worker."""
    (found,) = all_sessions(machine)
    return found


def noise(number: int) -> list[int]:
    """A prompt of ids that were drawn."""
    draw = random.Random(number)
    return [draw.randrange(300, 1000) for _ in range(draw.randrange(40, 300))]


def choice(machine: Any, url: str, number: int, **fields: Any) -> Any:
    """What is answered to a prompt, with the log probabilities of the two best tokens of each place."""
    body = {"model": "sample", "prompt": noise(number), "max_tokens": 12, "logprobs": 2, "temperature": 0, **fields}
    status, text = machine.ask(url, "/v1/completions", body)
    assert status == 200, text
    return json.loads(text)["choices"][0]


def answers(machine: Any, url: str, count: int, first: int = 0) -> list[Any]:
    """Texts, and all log probabilities, one request at a time; half of them greedy, half of them seeded."""
    found = []
    for number in range(first, first + count):
        drawn = {"temperature": 1.0, "seed": number} if number % 2 else {}
        one = choice(machine, url, number, **drawn)
        found.append((one["text"], one["logprobs"]["token_logprobs"], one["logprobs"]["top_logprobs"]))
    return found
