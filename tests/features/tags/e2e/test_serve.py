"""Two workers in processes of their own, of which one has a label."""

import json
from typing import Any

CONFIG = """
graph:
  services:
    Frontend: graphs.components:Frontend
    Processor: graphs.components:Processor
    Worker: graphs.components:Worker
    Labelled: graphs.components:Worker
  links: [Frontend -> Processor, Processor -> Worker, Processor -> Labelled]
Frontend: {port: 0}
Worker: {engine: echo_core, model: sample}
Labelled: {engine: echo_core, model: sample, tags: [x]}
"""


def test_requests_go_to_the_worker_with_the_label(machine: Any) -> None:
    (machine.folder / "labelled.yaml").write_text(CONFIG)
    command = machine.start("dynamo", "serve", "-f", "labelled.yaml")
    url = command.ready()
    machine.until(lambda: len(json.loads(machine.ask(url, "/health")[1])["instances"]) == 2, 60)
    body = {"model": "sample", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    for _ in range(3):
        status, text = machine.ask(url, "/v1/chat/completions", {**body, "nvext": {"tags": ["blue", "tag=x"]}})
        assert status == 200, text
        shown = machine.start("dynamo", "explain", json.loads(text)["id"]).wait(60).out
        assert "tags: blue,tag=x" in shown, shown
        assert "lacks the label x" in shown, shown
    status, text = machine.ask(url, "/v1/chat/completions", {**body, "nvext": {"tags": ["tag=y"]}})
    assert (status, "tag=y" in text, "labels: x" in text) == (400, True, True), text
    metrics = machine.ask(url, "/metrics")[1]
    assert 'tagged_requests_total{tag="tag=x"} 3.0' in metrics
    assert " tags=blue,tag=x" in command.err
    command.end()
