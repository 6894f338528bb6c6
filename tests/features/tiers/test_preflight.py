"""Whether a machine has room for the tiers of all workers of a graph, before a process of it starts."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dynamod.cli.flags import parse
from dynamod.cli.preflight import check
from dynamod.cli.run import build
from dynamod.daemon.names import node_name
from dynamod.graph.graph import Graph
from dynamod.kvcache import tier_settings
from dynamod.kvcache.tier_settings import GB
from dynamod.message.errors import UserError
from dynamod.observe import memory


def graph(*words: str) -> Graph:
    return build(parse(["in=http", *words]))


def tiered(two: int = 1, nodes: tuple[str, ...] = (), **sizes: object) -> Graph:
    """A graph of one or two components, `two` workers in each, whose tiers have these sizes."""
    whole = graph("out=llamacpp", "sample.gguf")
    worker = whole.services["Worker"]
    worker = replace(worker, workers=two, config={**worker.config, "engine_args": sizes})
    other = replace(worker, name="Other", nodes=nodes)
    return replace(whole, services={**whole.services, "Worker": worker} | ({"Other": other} if nodes else {}))


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs the extra llama_cpp")
def test_tiers_of_all_workers_of_a_node_have_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tier_settings, "free_memory", lambda: 10 * GB)
    monkeypatch.setattr(tier_settings.shutil, "disk_usage", lambda _path: SimpleNamespace(free=10 * GB))
    here = node_name({})
    check(tiered(kv_host_gb=6), {})
    check(tiered(2, kv_host_gb=5), {})
    check(tiered(1, ("elsewhere",), kv_host_gb=6), {})
    with pytest.raises(UserError) as caught:
        check(tiered(2, kv_host_gb=6), {})
    assert caught.value.line() == (
        "Worker.kv_host_gb: 2 x 6 GB, but 10.0 GB of memory are free; "
        "each worker has a tier of its own: make them smaller, or the workers fewer"
    )
    with pytest.raises(UserError, match=r"Worker.kv_host_gb and Other.kv_host_gb: 6 GB and 6 GB, but 10.0 GB of"):
        check(tiered(1, (here,), kv_host_gb=6), {})
    monkeypatch.setattr(memory, "resident", lambda _pid, own: 2 * GB * own)
    with memory.replacing([1]):
        check(tiered(1, (here,), kv_host_gb=6), {})
    check(tiered(2, kv_disk_gb=5, kv_disk_path=str(tmp_path / "a")), {})
    says = rf"Worker.kv_disk_gb and Other.kv_disk_gb: 2 x 3 GB and 2 x 3 GB, but 10.0 GB are free at {tmp_path}"
    with pytest.raises(UserError, match=says):
        check(tiered(2, (here,), kv_disk_gb=3, kv_disk_path=str(tmp_path / "b")), {})
    monkeypatch.setattr(tier_settings, "folder_bytes", lambda _folder: 2 * GB)  # files that are there already
    check(tiered(2, (here,), kv_disk_gb=3, kv_disk_path=str(tmp_path / "b")), {})
