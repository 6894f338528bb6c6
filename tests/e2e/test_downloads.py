"""Models that are downloaded: from a hub of this machine, slow enough to be watched and ended."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamod.preprocess import packaged
from dynamod.preprocess.locate import locate

from ..hub import CHUNK, Hub

REPOSITORY = {file.name: file.read_bytes() for file in locate("sample").iterdir()}
TENSORS = "model.safetensors"
ENGINE = """
import asyncio
from dynamo.llm import ModelType, register_llm
from dynamo.runtime import dynamo_worker

@dynamo_worker()
async def worker(runtime):
    component = runtime.namespace("mine").component("backend")
    await component.create_service()
    await register_llm(ModelType.Backend, component.endpoint("generate"), "org/toy")

asyncio.run(worker())
"""


@pytest.fixture
def hub(machine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    gguf = locate("sample.gguf").read_bytes()
    quantized = {"M-Q4_K_M.gguf": gguf, "M-Q8_0.gguf": gguf}
    with Hub({"org/toy": REPOSITORY, "org/M-GGUF": quantized}).running() as hub:
        machine.env.update(HF_ENDPOINT=hub.url, HF_HOME=str(machine.folder / "hf"), RAYON_NUM_THREADS="1")
        yield hub


def unfinished(machine: Any) -> list[Path]:
    """What nobody would go on with."""
    return _files(machine, ".incomplete")


def parts(machine: Any) -> list[Path]:
    """What the next download goes on with."""
    return _files(machine, ".part")


def _files(machine: Any, suffix: str) -> list[Path]:
    # os.walk lives through folders that go meanwhile
    found = [Path(folder, name) for folder, _, names in os.walk(machine.folder / "hf") for name in names]
    return [path for path in found if path.suffix == suffix]


def complaints(text: str) -> list[str]:
    return [
        line for line in text.splitlines() if re.search(r"Traceback|ERROR|silent|killed|WARN .*dynamod.daemon", line)
    ]


@pytest.mark.engine
def test_progress_in_terminal_and_ps_and_ctrl_c(machine: Any, hub: Hub) -> None:
    pytest.importorskip("mistralrs")
    hub.speed = 100_000
    command = machine.start("dynamo-run", "in=http", "out=mistralrs", "org/toy", f"--http-port={machine.port()}")
    machine.until(lambda: any(" kB of 3.6 MB, " in row["detail"] for row in machine.ps("Worker")))
    row = machine.row("Worker")
    assert row["state"] == "Starting"
    assert row["detail"].startswith("downloading org/toy: ")
    assert f"Starting: {row['detail'].split(':')[0]}" in machine.run("dynamo", "ps").out
    assert re.search(r"^downloading org/toy: .* of 3\.6 MB, ", command.err, re.MULTILINE)
    assert parts(machine)
    done = command.end(bound=2.0)
    assert re.search(r"^downloading org/toy: .* of 3\.6 MB, .*/s; interrupted$", done.err, re.MULTILINE)
    assert complaints(done.err) == []
    assert unfinished(machine) == []
    assert hub.sent[TENSORS] < len(REPOSITORY[TENSORS])
    [here] = [part.stat().st_size for part in parts(machine)]
    hub.speed, hub.sent[TENSORS] = 1e9, 0
    machine.run("dynamo", "pull", "org/toy", seconds=60)
    assert hub.sent[TENSORS] <= len(REPOSITORY[TENSORS]) - here + 2 * CHUNK, "the download continues where it stopped"


@pytest.mark.engine
def test_one_quantization_answers_and_the_files_are_loaded_once(machine: Any, hub: Hub) -> None:
    pytest.importorskip("mistralrs")
    hub.speed = 5e6
    (machine.folder / "prompts.jsonl").write_text('{"text": "What is the capital of France?"}\n')
    done = machine.run("dynamo-run", "in=batch:prompts.jsonl", "out=mistralrs", "org/M-GGUF:Q4_K_M", seconds=60)
    assert done.code == 0, done.err
    answer = json.loads((machine.folder / "prompts.output.jsonl").read_text())
    assert answer["response"] == "The capital of France is Paris."
    assert hub.begun == ["M-Q4_K_M.gguf"]
    assert complaints(done.err) == []


def test_a_model_that_is_nowhere_is_said_before_a_process_starts(machine: Any, hub: Hub) -> None:
    serve = ("serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Worker.engine=mocker", "--Frontend.port=0")
    line = machine.run("dynamo", *serve, "--Worker.model=nobody/never-heard-of").mistake()
    assert line.startswith("error: Worker: model 'nobody/never-heard-of' was not found on Hugging Face; check the name")
    assert f"the cache {machine.folder}/hf/hub, the hub {hub.url}" in line


@pytest.mark.engine
def test_offline_is_said_once_and_soon(machine: Any, hub: Hub) -> None:
    pytest.importorskip("mistralrs")
    machine.env["HF_ENDPOINT"] = f"http://127.0.0.1:{machine.port()}"
    done = machine.run("dynamo-run", "in=http", "out=mistralrs", "org/toy", "--http-port=0", seconds=15)
    assert done.code != 0
    (line,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert "model 'org/toy' is not in the local cache, and Hugging Face cannot be reached" in line
    assert "Retrying" not in done.err + done.out
    assert "Traceback" not in done.err + done.out


def test_a_python_file(machine: Any, hub: Hub) -> None:
    hub.speed = 5_000
    command = machine.script(ENGINE, name="engine")
    machine.until(lambda: any(" kB of 57.9 kB" in row["detail"] for row in machine.ps("backend")))
    assert "downloading org/toy: " in command.err
    done = command.end(bound=3.0)
    assert "; interrupted\n" in done.err
    assert complaints(done.err) == []
    assert unfinished(machine) == []


def test_pull_and_models(machine: Any, hub: Hub) -> None:
    pulled = machine.run("dynamo", "pull", "org/M-GGUF:Q8_0", seconds=60)
    path = Path(pulled.out.strip())
    assert path.read_bytes() == locate("sample.gguf").read_bytes()
    assert hub.begun == ["M-Q8_0.gguf"]
    again = machine.run("dynamo", "pull", "org/M-GGUF:Q8_0", "--output", "json").json
    assert again == {"name": "org/M-GGUF:Q8_0", "path": str(path)}
    assert hub.begun == ["M-Q8_0.gguf"]
    machine.run("dynamo", "pull", "org/toy", "--no-weights")
    rows = {row["name"]: row for row in machine.run("dynamo", "models", "--output", "json").json}
    ours = {"sample", "sample.gguf", "org/M-GGUF:Q8_0", "org/toy"}
    assert rows.keys() - packaged.PACKAGED.keys() == ours  # models of the extra demo, where it is installed
    assert rows["org/M-GGUF:Q8_0"] == {
        "name": "org/M-GGUF:Q8_0",
        "size": path.stat().st_size,
        "kind": "GGUF",
        "path": str(path),
    }
    assert rows["org/toy"]["kind"] == "tokenizer"
    assert rows["sample"]["kind"] == "safetensors"
    machine.run("dynamo", "pull", "org/toy")
    shown = machine.run("dynamo", "models").out
    assert re.search(r"^\| org/toy +\|  *3\.6 MB +\| safetensors +\| /", shown, re.MULTILINE)
    words = {"_DYNAMO_COMPLETE": "complete_bash", "COMP_WORDS": "dynamo pull org/t", "COMP_CWORD": "2"}
    assert machine.run("dynamo", **words).out.split() == ["org/toy"]


def test_ctrl_c_ends_a_pull(machine: Any, hub: Hub) -> None:
    hub.speed = 100_000
    command = machine.start("dynamo", "pull", "org/toy")
    machine.until(lambda: hub.sent.get(TENSORS) and parts(machine) and "downloading org/toy" in command.err)
    command.tree()
    os.killpg(command.pid, signal.SIGINT)  # as a terminal does
    done = command.wait(2.0)
    command.gone(2.0)
    assert done.code == 130
    assert re.search(r"^downloading org/toy: .*; interrupted\n\Z", done.err, re.MULTILINE)
    assert unfinished(machine) == []
    mistake = machine.run("dynamo", "pull", "org/M-GGUF:Q2_K").mistake()
    assert "has no quantization 'Q2_K'; it has: Q4_K_M (3.6 MB), Q8_0 (3.6 MB)" in mistake
