"""`out=dyn://...`: static workers, and discovery that is limited to an address."""

import json
from typing import Any

from .together import together


def models(machine: Any, url: str) -> list[str]:
    return sorted(model["id"] for model in json.loads(machine.ask(url, "/v1/models")[1])["data"])


@together
def test_a_static_worker_comes_and_goes(machine: Any) -> None:
    words = ("out=dyn://dynamo.backend.generate", "--model-name", "mine", "--model-path", "sample", "--http-port", 0)
    front = machine.start("dynamo-run", "in=http", *words)
    url = front.ready()
    assert models(machine, url) == []
    for _ in range(2):
        worker = machine.start(
            "dynamo-run", "in=dyn://dynamo.backend.generate", "out=mocker", "sample", "--static-worker"
        )
        worker.prints("ready")
        machine.until(lambda: models(machine, url) == ["mine"])
        assert machine.chat(url, "hello", model="mine", max_tokens=5)
        taken = machine.run("dynamo-run", "in=dyn://dynamo.backend", "out=echo_core", "sample", "--static-worker")
        assert "a static worker serves dyn://dynamo.backend.generate already" in taken.err.splitlines()[-1]
        refused = machine.run("dynamo", "drain", "Worker").mistake()
        assert (
            "model sample at dyn://dynamo.backend.generate will not be served: no worker other than Worker" in refused
        )
        worker.end()
        machine.until(lambda: models(machine, url) == [])
    front.end()


@together
def test_out_dyn_with_an_address_finds_only_what_is_there(machine: Any) -> None:
    front = machine.start("dynamo-run", "in=http", "out=dyn://here", "--http-port", 0)
    url = front.ready()
    workers = [
        machine.start("dynamo-run", f"in=dyn://{where}", "out=echo_core", "sample", "--model-name", where)
        for where in ("there", "here")
    ]
    for worker in workers:
        worker.prints("ready")
    machine.until(lambda: models(machine, url) == ["here"])
    everything = machine.start("dynamo-run", "in=http", "out=auto", "--http-port", 0)
    assert models(machine, everything.ready()) == ["here", "there"]


@together
def test_a_model_name_is_one_model(machine: Any) -> None:
    first = machine.start("dynamo-run", "in=dyn://a", "out=echo_core", "sample")
    first.prints("ready")
    other = machine.run("dynamo-run", "in=dyn://b", "out=echo_full", "--model-name", "sample").err.splitlines()[-1]
    assert other.startswith(
        "error: Worker cannot start: the model name 'sample' is taken: run-echo_core/Worker.0 serves it"
    )
    assert "as tokens" in other
    assert "--model-name" in other
    shorter = machine.run(
        "dynamo-run", "in=dyn://b", "out=echo_core", "sample", "--context-length", "64"
    ).err.splitlines()[-1]
    assert "another tokenizer or template" in shorter
    vectors = machine.run("dynamo-run", "in=dyn://b", "out=mocker", "sample").err.splitlines()[-1]
    assert "here for chat, completions, embeddings" in vectors
    second = machine.start("dynamo-run", "in=dyn://b", "out=echo_core", "sample")
    second.prints("ready")
