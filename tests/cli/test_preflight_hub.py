"""Models that are neither here nor on the hub are known before a process starts."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dynamod.cli.flags import parse
from dynamod.cli.preflight import check_hub
from dynamod.cli.run import build
from dynamod.graph.graph import Graph
from dynamod.message.errors import UserError
from dynamod.preprocess import cache
from dynamod.preprocess.fetch import fetch, look

from ..hub import Hub
from ..ports import free_port

FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"x" * 100}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with Hub({"org/toy": FILES, "org/M-GGUF": {"M-Q4_K_M.gguf": b"4" * 900}}).running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setattr(cache, "root", lambda: tmp_path / "hf/hub")  # the library has read its own variables
        monkeypatch.setattr("dynamod.preprocess.fetch.LOOK", 60.0)  # to import takes its time
        yield hub


def graph(*words: str) -> Graph:
    return build(parse(["in=http", *words]))


def refused(whole: Graph) -> str:
    with pytest.raises(UserError) as caught:
        check_hub(whole)
    assert "\n" not in caught.value.line()
    return caught.value.line()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["out=mocker", "org/none"], "Worker: model 'org/none' was not found on Hugging Face"),
        (["out=mocker", "org/toy", "--model-config", "org/none"], "Worker: model 'org/none' was not found"),
        (["out=llamacpp", "org/M-GGUF:Q2_K"], "has no quantization 'Q2_K'"),
    ],
)
def test_a_model_that_the_hub_lacks(hub: Hub, words: list[str], says: str) -> None:
    assert says in refused(graph(*words))


def test_where_it_was_searched_and_what_to_do(hub: Hub, tmp_path: Path) -> None:
    line = refused(graph("out=mocker", "org/none"))
    searched = f"searched: the folder {Path.cwd()}, the cache {tmp_path}/hf/hub, the hub {hub.url}"
    assert line.endswith(searched)
    assert "check the name, or set HF_TOKEN" in line


def test_a_model_of_the_hub_is_not_downloaded(hub: Hub) -> None:
    check_hub(graph("out=mocker", "org/toy"))
    assert not hub.begun


async def test_a_model_that_is_here_is_not_asked_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    await fetch("org/toy", weights=False)
    monkeypatch.setattr("subprocess.run", lambda *_args, **_more: pytest.fail("a process was started"))
    for model in ("org/toy", "sample"):
        check_hub(graph("out=mocker", model))


def test_a_hub_that_cannot_be_reached(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert "model 'org/toy' is not in the local cache, and Hugging Face cannot" in refused(
        graph("out=mocker", "org/toy")
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set; unset it" in refused(graph("out=mocker", "org/toy"))


def test_variables_of_the_component_count(hub: Hub) -> None:
    whole = graph("out=mocker", "org/toy")
    spec = replace(whole.services["Worker"], envs={"HF_HUB_OFFLINE": "1"})
    assert "HF_HUB_OFFLINE is set" in refused(replace(whole, services={"Worker": spec}))


def test_a_worker_of_another_node_is_left_out(hub: Hub) -> None:
    whole = graph("out=mocker", "org/none")
    spec = replace(whole.services["Worker"], nodes=("elsewhere",))
    check_hub(replace(whole, services={"Worker": spec}))


def test_a_hub_that_does_not_answer_keeps_nothing_waiting(hub: Hub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        look("org/none", {**os.environ, "HF_ENDPOINT": endpoint}, within=1.0)  # else 10 s, and an error
