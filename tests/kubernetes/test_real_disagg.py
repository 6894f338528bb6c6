"""A disaggregated graph with llama.cpp in pods: prompts and their KV blocks go from pod to pod; `run_real.sh`."""

import importlib.util
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.asking import Streaming
from tests.e2e.command import until
from tests.e2e.disagg import LONG

from .cluster import START, Cluster
from .control_plane import NAMESPACE

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs the extra llama_cpp"),
]
EXACT = {"block_size": 16, "flash_attn": "off", "split_tail": True, "n_threads": 1, "step_seconds": 30.0}
"""With these the answers are those of one worker alone, to the last bit: a busy machine cuts no prompt into steps."""
TEXTS = [f"{number} {LONG}" for number in range(28)]
"""Each is asked once after the answers of a worker alone: a prompt in a cache may have been computed in other parts."""
FEW = 6
FIELDS = {"max_tokens": 500, "ignore_eos": True, "temperature": 0}


def config(machine: Any, graph: str, processor: dict[str, Any], **workers: int) -> str:
    """A file of the shipped graph, for the pods."""
    engine = {"engine": "llamacpp", "model": "sample.gguf", "served_model_name": "sample", "engine_args": EXACT}
    sections = {name: {**engine, "ServiceArgs": {"workers": count}} for name, count in workers.items()}
    content = {"graph": graph, "Frontend": {"port": 8000}, "Processor": processor, **sections}
    (machine.folder / "graph.yaml").write_text(yaml.safe_dump(content))
    return "graph.yaml"


def applied(cluster: Cluster, machine: Any, file: str) -> None:
    words = ("manifest", "-f", file, f"--name={cluster.release}", "--secret=shared", "--drain=20", "--no-crd")
    printed = machine.run("dynamo", *words, f"--namespace={NAMESPACE}")
    assert printed.code == 0, printed.err
    (machine.folder / "resources.yaml").write_text(printed.out)
    cluster.kubectl("apply", "-f", str(machine.folder / "resources.yaml"))


@pytest.fixture
def graph(shared_cluster: Cluster) -> Iterator[Cluster]:
    """A release without pods, and no pods of others beside it."""
    shared_cluster.scale(0, 0)
    made = shared_cluster.another("llama")
    yield made
    for kind in ("statefulset", "deployment"):
        made.kubectl("delete", kind, "-l", f"dynamod.dev/graph={made.graph}")
    until(lambda: not [one for one in made.pods if one.name.startswith(made.graph)], 90, "the end of the graph")


def counted(cluster: Cluster, name: str) -> int:
    """A counter of the frontend, of all models."""
    found = re.findall(rf"^dynamo_frontend_model_{name}(?:{{[^}}]*}})? (\d+)", cluster.metrics(), re.MULTILINE)
    return sum(map(int, found))


def answers(cluster: Cluster, texts: list[str]) -> list[str]:
    """One after the other: sums of an engine depend on who else is computed."""
    (front,) = cluster.ready("frontend").values()
    return [ended(cluster.stream(front, text, **FIELDS)) for text in texts]


def ended(stream: Streaming) -> str:
    """The text of a stream that is read to its end, which must be a good one."""
    stream.read()
    assert (stream.error, stream.finish) == (None, "length")
    return stream.text


def test_prompts_of_llamacpp_go_from_pod_to_pod(graph: Cluster, machine: Any) -> None:
    """The texts are those of a worker alone, also when the pod that answers or the pod of prompts is killed."""
    applied(graph, machine, config(machine, "graphs.agg:Frontend", {}, Worker=1))
    graph.wait("worker", 1, START)
    (front,) = graph.wait("frontend", 1, START).values()
    until(lambda: graph.served(front) == 1, 60, "the worker")
    wanted = dict(zip(TEXTS, answers(graph, TEXTS), strict=True))
    assert len({*wanted.values()}) > 1
    fresh = iter(TEXTS)

    def right() -> None:
        texts = list(itertools.islice(fresh, FEW))
        assert answers(graph, texts) == [wanted[text] for text in texts]

    processor = {"remote-prefill": True, "conditional-disagg": True, "max-local-prefill-length": 32}
    applied(graph, machine, config(machine, "graphs.disagg:Frontend", processor, Worker=2, PrefillWorker=1))
    for kind, component in (("deployment", "frontend"), ("statefulset", "worker"), ("statefulset", "prefill-worker")):
        # Until then the worker of before may be there, whose requests move when it is replaced.
        graph.kubectl("rollout", "status", f"{kind}/{graph.graph}-{component}", f"--timeout={START:.0f}s")
    for component, replicas in (("worker", 2), ("prefill-worker", 1)):
        graph.wait(component, replicas, START)
    (front,) = graph.wait("frontend", 1, START).values()
    until(lambda: (graph.served(front), graph.served(front, "prefill-worker")) == (2, 1), START, "all workers")
    right()
    assert (counted(graph, "remote_prefill_total"), counted(graph, "remote_prefill_failed_total")) == (FEW, 0)

    before = graph.migrations()
    for number, text in enumerate(itertools.islice(fresh, 10)):
        stream = graph.stream(front, text, **FIELDS)
        graph.pod(f"{graph.graph}-worker-{number % 2}").kill()
        assert ended(stream) == wanted[text], "the pod that answers may have been killed"
        until(lambda: graph.served(front) == 2, START, "the worker is there again")
        if number % 2 and graph.migrations() > before:
            break
    assert graph.migrations() > before, "one of them was the pod that answered"

    graph.pod(f"{graph.graph}-prefill-worker-0").kill()
    right()  # without a pod for prompts they are computed where the answer is
    until(lambda: graph.served(front, "prefill-worker") == 1, START, "the prefill worker is there again")
    before = counted(graph, "remote_prefill_total")
    right()
    assert counted(graph, "remote_prefill_total") > before
