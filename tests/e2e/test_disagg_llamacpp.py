"""Prefill and decode workers with llama.cpp: text and log probabilities are those of one worker, to the last bit."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from .disagg import answers, choice
from .nodes import Servers, front, instances, on

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

PROMPTS, FEW = 200, 24
"""Half of them greedy, half of them seeded."""
EXACT = {"flash_attn": "off", "split_tail": True, "n_threads": 1, "step_seconds": 60.0}
"""Flash attention adds up in an order that depends on where the KV cells lie. The tail of a prompt is what the worker
that reads the blocks computes itself: one that does all cuts there, too."""


def alone(machine: Any, count: int, arguments: dict[str, Any]) -> list[Any]:
    """What one worker answers that computes all itself."""
    words = ("out=llamacpp", "sample.gguf", "--model-name", "sample", "--extra-engine-args", json.dumps(arguments))
    command = machine.start("dynamo-run", "in=http", *words, "--http-port=0")
    found = answers(machine, command.ready(), count)
    command.end()
    return found


def serve(machine: Any, graph: str, arguments: dict[str, Any], *flags: str) -> Any:
    """The shipped graph, with one worker in each pool; prompts of more than 16 tokens are computed remotely."""
    given = json.dumps(arguments)
    return machine.start(
        "dynamo",
        *("serve", f"graphs.{graph}:Frontend", "-f", f"configs/{graph}.yaml", "--Frontend.port=0"),
        *(f"--Worker.engine_args={given}", f"--PrefillWorker.engine_args={given}"),
        *("--Worker.ServiceArgs.workers=1", "--PrefillWorker.ServiceArgs.workers=1"),
        *("--Processor.max-local-prefill-length=16", *flags),
    )


def handoffs(machine: Any) -> list[dict[str, Any]]:
    details = [one.get("details") for one in machine.raw("GET", "/v1/inspect")[1]]
    return [one["handoff"] for one in details if one and one.get("handoff")]


@pytest.mark.parametrize("graph", ["disagg", "disagg_router"])
def test_the_answers_are_those_of_one_worker(machine: Any, graph: str) -> None:
    expected = alone(machine, PROMPTS, EXACT)
    command = serve(machine, graph, EXACT)
    url = command.ready()
    assert answers(machine, url, PROMPTS) == expected
    (reader,) = [one for one in handoffs(machine) if one["sessions"] is None]
    assert (reader["transfers"], reader["failed"]) == (PROMPTS, 0), reader
    (source,) = [one["sessions"] for one in handoffs(machine) if one["sessions"]]
    assert (source["open"], source["read"], source["expired"]) == (0, PROMPTS, 0), source


def test_answers_at_the_same_time_differ_where_two_tokens_are_alike_only(machine: Any) -> None:
    """Sums depend on who else is computed: a text that differs does so where the two best tokens are within 0.01.

    With flash attention they are coarser, with and without hand-off.
    """
    arguments = {"flash_attn": "off"}
    words = ("out=llamacpp", "sample.gguf", "--model-name", "sample", "--extra-engine-args", json.dumps(arguments))
    command = machine.start("dynamo-run", "in=http", *words, "--http-port=0")
    url = command.ready()
    expected = [choice(machine, url, number) for number in range(PROMPTS)]
    command.end()
    url = serve(machine, "disagg", arguments, "--Processor.max-prefill-queue-size=99").ready()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: choice(machine, url, number), range(PROMPTS)))
    (reader,) = [one for one in handoffs(machine) if one["sessions"] is None]
    assert (reader["transfers"], reader["failed"]) == (PROMPTS, 0), reader
    for one, other in zip(found, expected, strict=True):
        assert one["text"] == other["text"] or gap(one["logprobs"], other["logprobs"]) < 0.01


def gap(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Between the two best tokens in the place where two answers begin to differ."""
    places = enumerate(zip(one["tokens"], other["tokens"], strict=False))
    index = next((index for index, (mine, theirs) in places if mine != theirs), None)
    assert index is not None, "one is the other's beginning"
    best, second = sorted(other["top_logprobs"][index].values(), reverse=True)[:2]
    return float(best - second)


def test_over_nodes(machine: Any, shared_servers: Servers) -> None:
    expected = alone(machine, FEW, EXACT)
    _door, url = front(machine, shared_servers, "--max-local-prefill-length", 16)
    common = ("out=llamacpp", "sample.gguf", "--model-name", "sample", "--extra-engine-args", json.dumps(EXACT))
    for node, pool in (("two", "decode"), ("three", "prefill")):
        words = (f"in=dyn://m.{pool}.generate", *common, "--disaggregation-mode", pool)
        machine.start("dynamo-run", *words, **on(machine, shared_servers, node)).prints("ready", 60)
    machine.until(lambda: instances(machine, url) == ["three", "two"] and machine.serves(url))
    assert answers(machine, url, FEW) == expected
    socket_path = machine.folder / "two/d.sock"
    details = [one.get("details") for one in machine.raw("GET", "/v1/inspect", socket_path=socket_path)[1]]
    (reader,) = [one["handoff"] for one in details if one and one.get("handoff")]
    assert (reader["transfers"], reader["failed"]) == (FEW, 0), reader
    machine.commands[-1].end()  # the prefill worker
    machine.until(lambda: instances(machine, url) == ["two"])
    assert [text for text, *_ in answers(machine, url, FEW)] == [text for text, *_ in expected], (
        "aggregated, from its cache"
    )


def test_workers_change_their_roles(machine: Any) -> None:
    """The one that answered computes the prompts, and the other way round. The text is that of one worker."""
    arguments, fields = json.dumps(EXACT), {"max_tokens": 1500, "ignore_eos": True}
    words = ("out=llamacpp", "sample.gguf", "--model-name", "sample", "--extra-engine-args", arguments)
    one = machine.start("dynamo-run", "in=http", *words, "--http-port=0")
    url = one.ready()
    expected, whole = [text for text, *_ in answers(machine, url, 2 * FEW)], machine.chat(url, "tell me", **fields)
    one.end()

    command = serve(machine, "disagg", EXACT)
    url = command.ready()
    machine.until(lambda: all(row["role"] for row in machine.ps() if "Worker" in row["component"]))
    assert [text for text, *_ in answers(machine, url, FEW)] == expected[:FEW]
    stream = machine.stream(url, "tell me", **fields)
    for words in (("PrefillWorker", "decode"), ("Worker", "prefill", "--timeout=0.2")):
        done = machine.run("dynamo", "switch", *words, seconds=90)
        assert done.code == 0, done.err
    assert (stream.read().text, stream.error) == (whole, None)
    assert [text for text, *_ in answers(machine, url, FEW, first=FEW)] == expected[FEW:]
    assert [one["transfers"] for one in handoffs(machine)] == [FEW, FEW]
    assert [one["failed"] for one in handoffs(machine)] == [0, 0]
    command.end()
