"""The documents, walked: engines with environments of their own, what needs accelerators; and the whole table."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from . import seed_documents, seeds, test_seeds, test_seeds_nodes
from .test_chat import Terminal
from .test_gpus import visible
from .walking import ASK_3B, PRETORIA, WALKED, adapted, ask, line_of, serve, text, walks

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="no curl"),
]


TWO = "--tensor-parallel-size 2 --base-gpu-id"


@walks(*(line.text for line in seeds.HEAVY))
@pytest.mark.heavy
@pytest.mark.parametrize("line", [line.text for line in seeds.HEAVY])
def test_vllm_and_sglang(machine: Any, line: str) -> None:
    variable = f"DYNAMOD_TEST_{'VLLM' if 'vllm' in line else 'SGLANG'}_PYTHON"
    if not (python := os.environ.get(variable, "")):
        pytest.skip(f"{variable} names no python")
    machine.env["OMP_NUM_THREADS"] = "1"
    words = adapted(line.replace("dynamo run", "dynamo-run").removeprefix("python -m "))
    if "--help" in words:
        command = [python, "-m", *words]
        shown = subprocess.run(command, env=machine.environ(), capture_output=True, text=True, timeout=120)
        own = "--max-num-seqs" if "vllm" in line else "--page-size"
        assert {own, "--endpoint"} <= {*re.findall(r"--[\w-]+", shown.stdout)}, shown.stderr
        return
    if "--extra-engine-args" in words:
        (machine.folder / words[-1]).write_text('{"dtype": "float32", "trust_remote_code": true}')
    words += ["--python", python]
    if words[0] == "dynamo-run" and not any(word.startswith("in=") for word in words):
        chat = Terminal(machine, *words[1:])
        chat.until("User ›", 300)
        chat.type("What is the capital of South Africa?\r")
        chat.until(PRETORIA)
        chat.until("User ›")
        assert chat.end("\x04", 20) == 0
        return
    alone = "in=http" in words
    worker = machine.start(*words, *(["--http-port", "0"] if alone else []))
    url = "" if alone else serve(machine, "dynamo-run in=http out=auto")
    said = worker.prints(r"ready(?:: (\S+))?\n", 300)[1]
    url = url or said
    machine.until(lambda: machine.serves(url))
    assert text(ask(machine, url, ASK_3B)) == PRETORIA


CARRIED: dict[str, dict[str, Any]] = {
    line_of(f"dynamo-run in=dyn://qwen3-32b.backend.generate out=sglang /data/Qwen3-32B {TWO} 0"): {
        "engine": "sglang",
        "model": "/data/Qwen3-32B",
        "tensor_parallel_size": 2,
        "base_gpu_id": 0,
    },
    line_of(f"dynamo-run in=dyn://qwen3-32b.backend.generate out=sglang /data/Qwen3-32B {TWO} 2"): {
        "engine": "sglang",
        "model": "/data/Qwen3-32B",
        "tensor_parallel_size": 2,
        "base_gpu_id": 2,
    },
    "dynamo-run out=sglang <model> --tensor-parallel-size 4 --base-gpu-id 4": {
        "engine": "sglang",
        "model": "<model>",
        "tensor_parallel_size": 4,
        "base_gpu_id": 4,
    },
    line_of("./dynamo-run in=http out=sglang"): {
        "engine": "sglang",
        "model": "~/llms/DeepSeek-R1-Distill-Llama-70B/",
        "tensor_parallel_size": 8,
    },
    line_of("dynamo-run out=sglang ~/llms/Llama-4-Scout"): {
        "engine": "sglang",
        "model": "~/llms/Llama-4-Scout-17B-16E-Instruct/",
        "tensor_parallel_size": 8,
    },
    line_of("dynamo-run out=sglang /data/models"): {
        "engine": "sglang",
        "model": "/data/models/DeepSeek-R1-Distill-Llama-70B/",
        "tensor_parallel_size": 16,
        "node_rank": 0,
        "num_nodes": 2,
        "leader_addr": "10.217.98.122:5000",
    },
    line_of("dynamo-run in=http out=sglang --model-path"): {
        "engine": "sglang",
        "model": "~/llm_models/DeepSeek-R1-Distill-Llama-70B/",
        "tensor_parallel_size": 8,
        "num_nodes": 2,
        "node_rank": 0,
        "leader_addr": "10.217.98.122:9876",
    },
    line_of("dynamo-run in=none out=sglang"): {
        "engine": "sglang",
        "model": "~/llm_models/DeepSeek-R1-Distill-Llama-70B/",
        "tensor_parallel_size": 8,
        "num_nodes": 2,
        "node_rank": 1,
        "leader_addr": "10.217.98.122:9876",
    },
    line_of("dynamo-run in=text out=vllm"): {
        "engine": "vllm",
        "model": "~/llm_models/Llama-3.2-3B-Instruct/",
        "tensor_parallel_size": 8,
        "num_nodes": 2,
        "node_rank": 0,
        "leader_addr": "10.217.98.122:6539",
    },
    line_of("dynamo-run in=none out=vllm"): {
        "engine": "vllm",
        "model": "~/llm_models/Llama-3.2-3B-Instruct/",
        "num_nodes": 2,
        "node_rank": 1,
        "leader_addr": "10.217.98.122:6539",
    },
    line_of("dynamo-run out=vllm ~/llms/DeepSeek"): {
        "engine": "vllm",
        "model": "~/llms/DeepSeek-R1-Distill-Llama-70B/",
        "tensor_parallel_size": 16,
    },
    "dynamo-run in=http out=trtllm TinyLlama/TinyLlama-1.1B-Chat-v1.0": {
        "engine": "trtllm",
        "model": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    },
    line_of("dynamo-run in=http out=trtllm TinyLlama/TinyLlama-1.1B-Chat-v1.0 --extra"): {
        "engine": "trtllm",
        "model": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        "engine_args": {"backend": "pytorch", "kv_cache_config": {"event_buffer_max_size": 1024}},
    },
    line_of("dynamo-run in=text out=trtllm"): {
        "engine": "trtllm",
        "model": "/app/trtllm_engine/",
        "model_config": "~/llm_models/Llama-3.2-3B-Instruct/",
    },
}
"""Settings of the worker that the lines for accelerators lead to, but for those that are left as they are."""
LEFT = {
    "tensor_parallel_size": 1,
    "base_gpu_id": 0,
    "num_nodes": 1,
    "node_rank": 0,
    "leader_addr": "",
    "engine_args": {},
}
GUIDE = "DYNAMOD_TEST_SEEDS"
"""Names the folder of the documents, which are no part of this repository."""


def dry_run(machine: Any, line: str) -> tuple[dict[str, Any], str]:
    """Its sections and addresses. in=text is for terminals."""
    words = [*line.removeprefix("./").split()[1:], "--dry-run"]
    if "in=text" in words:
        terminal = Terminal(machine, *words)
        assert terminal.end() == 0
        shown = terminal.text.replace("\r\n", "\n")
    else:
        done = machine.run("dynamo-run", *words)
        assert (done.code, done.err) == (0, "")
        shown = done.out
    sections, end = json.JSONDecoder().raw_decode(shown, shown.index("{"))
    return sections, shown[end:]


def test_lines_for_accelerators_are_read(machine: Any) -> None:
    ours = [line.text for line in seeds.LINES if line.status == "needs GPU" and "dynamo-run " in line.text]
    assert {*ours} == CARRIED.keys()
    (machine.folder / "trtllm_extra.yaml").write_text(line_of("backend: pytorch"))
    for line, carried in CARRIED.items():
        sections, below = dry_run(machine, line)
        worker = sections["Worker"]
        of_models = {name: value for name, value in worker.items() if name in ("engine", "model", "model_config")}
        assert {**LEFT, **of_models, **{name: worker[name] for name in LEFT if name in worker}} == {**LEFT, **carried}
        address = re.search(r"in=(dyn://\S+)", line)
        assert f"Worker {address[1] if address else 'dyn://dynamo.backend.generate'}" in below
        assert ("Frontend" in sections) == ("in=none" not in line and address is None)


def test_arguments_of_an_engine_in_a_file(machine: Any) -> None:
    (machine.folder / "sglang_extra.json").write_text(line_of('{ "dtype"'))
    sections, _ = dry_run(
        machine, "dynamo-run out=sglang ~/llms/Llama-3.2-3B-Instruct --extra-engine-args sglang_extra.json"
    )
    assert sections["Worker"]["engine_args"] == {"dtype": "half", "trust_remote_code": True}


@walks(line_of("./dynamo-run in=http out=vllm --model-path ~/llm_models/Llama-3.2-3B-Instruct-Q6_K"))
def test_vllm_reads_no_gguf(machine: Any) -> None:
    (line,) = WALKED["test_vllm_reads_no_gguf"]
    refused = machine.run(*adapted(line), "--http-port", 0).mistake()
    assert "engine 'vllm' reads no GGUF files" in refused
    assert "out=llamacpp" in refused


@walks("CUDA_VISIBLE_DEVICES")
def test_the_users_devices_reach_the_engine(machine: Any) -> None:
    """Each command's own, though they share a daemon."""
    for number, devices in enumerate(("7", "", "0,2")):
        words = adapted(f"dynamo-run in=dyn://a.b{number}.c out=echo_core sample")
        machine.start(*words, fresh=True, CUDA_VISIBLE_DEVICES=devices).ready()  # the kernel shows its first variables
        (row,) = [one for one in machine.ps("Worker") if one["graph"] == machine.ps("Worker")[-1]["graph"]]
        assert visible(row["pid"]) == devices


@walks(*(line.text for line in seeds.INSTALL if line.status in ("works", "differs")))
def test_what_the_documents_install_and_name() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    for line in seeds.INSTALL:
        if extra := re.search(r"ai-dynamo(?:-|\[)(\w+)", line.text):
            assert f"dynamod[{extra[1]}]" in line.note
            assert extra[1] in project["optional-dependencies"], line.text
        if line.note.startswith("docs/"):
            assert (root / line.note).is_file(), line.note
    assert any(name.startswith("uvloop") for name in project["dependencies"])
    assert not (root / ".devcontainer").exists(), "its line says that there is none"


def test_every_line_is_walked_and_the_table_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    assert test_seeds.WALKED is test_seeds_nodes.walks.__globals__["WALKED"] is WALKED, "all modules count"
    runs = {line.text for line in seeds.LINES if line.status in ("works", "differs")}
    walked = {text for lines in WALKED.values() for text in lines}
    assert walked == runs
    assert len({line.text for line in seeds.LINES}) == len(seeds.LINES)
    assert (Path(__file__).parent / "SEEDS.md").read_text() == seeds.table()
    with capsys.disabled():
        print(f"\nlines of the documents: {seeds.counts()}")


def test_commands_are_found_in_documents(tmp_path: Path) -> None:
    (tmp_path / "0_a.txt").write_text(
        "Run `dynamo-run X  --a` or\n```\nNode 1: ./dynamo-run in=http \\\n  --b # why\n"
        "curl u -d '{\n  \"a\": [\n 1 ]\n}' | jq\nray stop\n```\ncurl sh.rustup.rs\n`dynamo-run` is fine.\n"
    )
    found = {
        "dynamo-run X --a": "0:1",
        "dynamo-run in=http --b": "0:3",
        "curl u -d '{\"a\": [1]}'": "0:5",
        "ray stop": "0:9",
    }
    assert seed_documents.commands(tmp_path) == found
    assert seed_documents.unknown(tmp_path, ["dynamo-run X --a", "echo x | ray stop"]).keys() == {
        "dynamo-run in=http --b",
        "curl u -d '{\"a\": [1]}'",
    }


@pytest.mark.skipif(not os.environ.get(GUIDE), reason=f"{GUIDE} names no folder of documents")
def test_the_table_has_every_command_of_the_documents() -> None:
    folder = Path(os.environ[GUIDE])
    assert len(seed_documents.commands(folder)) > 50
    assert seed_documents.unknown(folder, [line.text for line in seeds.LINES]) == {}
