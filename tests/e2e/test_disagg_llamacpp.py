"""Prefill and decode workers with llama.cpp: text and log probabilities are those of one worker, to the last bit."""

import json
import os
import signal
from typing import Any

import pytest

from .disagg import answers
from .nodes import Servers, front, instances, on

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

PROMPTS, FEW = 200, 24
EXACT = {"flash_attn": "off", "split_tail": True, "n_threads": 1}
"""Flash attention adds up in an order that depends on where the KV cells lie. The tail of a prompt is what the worker
that reads the blocks computes itself: one that does all cuts there, too."""


def handoffs(machine: Any) -> list[dict[str, Any]]:
    details = [one.get("details") for one in machine.raw("GET", "/v1/inspect")[1]]
    return [one["handoff"] for one in details if one and one.get("handoff")]


def test_the_answers_are_those_of_one_worker(machine: Any) -> None:
    arguments = json.dumps(EXACT)
    words = ("out=llamacpp", "sample.gguf", "--model-name", "sample", "--extra-engine-args", arguments)
    alone = machine.start("dynamo-run", "in=http", *words, "--http-port=0")
    expected = answers(machine, alone.ready(), PROMPTS)
    alone.end()

    command = machine.start(
        "dynamo",
        *("serve", "graphs.disagg:Frontend", "-f", "configs/disagg.yaml", "--Frontend.port=0"),
        *(f"--Worker.engine_args={arguments}", f"--PrefillWorker.engine_args={arguments}"),
        "--Processor.max-local-prefill-length=16",
    )
    url = command.ready()
    assert answers(machine, url, PROMPTS) == expected
    (reader,) = [one for one in handoffs(machine) if one["sessions"] is None]
    assert (reader["transfers"], reader["failed"]) == (PROMPTS, 0), reader
    (source,) = [one["sessions"] for one in handoffs(machine) if one["sessions"]]
    assert (source["open"], source["read"], source["expired"]) == (0, PROMPTS, 0), source

    # the prefill worker is killed while prompts are there: the answers are complete, and computed where they are given
    prompt = " ".join(f"word{number}" for number in range(350))
    begun = [machine.begin(url, f"{number} {prompt}", request=f"r{number}", max_tokens=8) for number in range(3)]
    os.kill(machine.row("PrefillWorker")["pid"], signal.SIGKILL)
    assert all(one.answer()["usage"]["completion_tokens"] == 8 for one in begun)


def test_over_nodes(machine: Any, shared_servers: Servers) -> None:
    _door, url = front(machine, shared_servers, "--max-local-prefill-length", 16)
    common = ("out=llamacpp", "sample.gguf", "--model-name", "sample", "--extra-engine-args", json.dumps(EXACT))
    for node, pool in (("two", "decode"), ("three", "prefill")):
        words = (f"in=dyn://m.{pool}.generate", *common, "--disaggregation-mode", pool)
        machine.start("dynamo-run", *words, **on(machine, shared_servers, node)).prints("ready", 60)
    machine.until(lambda: instances(machine, url) == ["three", "two"] and machine.serves(url))
    remote = answers(machine, url, FEW)
    socket_path = machine.folder / "two/d.sock"
    details = [one.get("details") for one in machine.raw("GET", "/v1/inspect", socket_path=socket_path)[1]]
    (reader,) = [one["handoff"] for one in details if one and one.get("handoff")]
    assert (reader["transfers"], reader["failed"]) == (FEW, 0), reader
    machine.commands[-1].end()  # the prefill worker
    machine.until(lambda: instances(machine, url) == ["two"])
    assert [text for text, *_ in answers(machine, url, FEW)] == [text for text, *_ in remote], (
        "aggregated, from its cache"
    )


def test_workers_change_their_roles(machine: Any) -> None:
    """The one that answered computes the prompts, and the other way round. The text is that of one worker."""
    arguments, fields = json.dumps(EXACT), {"max_tokens": 1500, "ignore_eos": True}
    words = ("out=llamacpp", "sample.gguf", "--model-name", "sample", "--extra-engine-args", arguments)
    alone = machine.start("dynamo-run", "in=http", *words, "--http-port=0")
    url = alone.ready()
    expected, whole = [text for text, *_ in answers(machine, url, 2 * FEW)], machine.chat(url, "tell me", **fields)
    alone.end()

    command = machine.start(
        "dynamo",
        *("serve", "graphs.disagg:Frontend", "-f", "configs/disagg.yaml", "--Frontend.port=0"),
        *(f"--Worker.engine_args={arguments}", f"--PrefillWorker.engine_args={arguments}"),
        "--Processor.max-local-prefill-length=16",
    )
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
