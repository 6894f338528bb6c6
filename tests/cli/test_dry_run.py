"""`dynamo-run ... --dry-run`: the settings that the graph would run with."""

import json
import sys
from typing import Any

import pytest

from dynamod.cli.run import run


def shown(capsys: pytest.CaptureFixture[str], line: str) -> tuple[dict[str, Any], str]:
    """The sections and what stands below them."""
    assert run(["--dry-run", *line.split()]) == 0
    text = capsys.readouterr().out
    sections, end = json.JSONDecoder().raw_decode(text, text.index("{"))
    assert text.startswith("Service Configuration:\n{")
    return sections, text[end:].strip()


def test_a_server_with_its_engine(capsys: pytest.CaptureFixture[str]) -> None:
    line = "in=http out=mocker sample --http-port 9123 --router-mode kv --context-length 64 --python " + sys.executable
    sections, below = shown(capsys, f"{line} --api-key secret -- --num-gpu-blocks 9")
    assert sections["Frontend"]["port"] == 9123
    assert sections["Frontend"]["api_keys"] == "***"
    assert sections["Processor"]["router_mode"] == "kv"
    worker = sections["Worker"]
    assert (worker["engine"], worker["model"], worker["context_length"]) == ("mocker", "sample", 64)
    assert worker["engine_args"] == {"num_gpu_blocks": 9}
    assert worker["ServiceArgs"] == {"python": sys.executable}
    assert below == "Addresses:\nWorker dyn://dynamo.backend.generate"


def test_a_worker_and_a_frontend(capsys: pytest.CaptureFixture[str]) -> None:
    line = "in=dyn://a.b.c out=sglang org/name --tensor-parallel-size 2 --base-gpu-id 2"
    sections, below = shown(capsys, line)
    assert sections.keys() == {"Worker"}
    assert sections["Worker"].items() >= {"tensor_parallel_size": 2, "base_gpu_id": 2, "engine": "sglang"}.items()
    assert below == "Addresses:\nWorker dyn://a.b.c"
    sections, below = shown(capsys, "in=http out=dyn://a.b.c")
    assert sections["Processor"]["only_endpoint"] == "dyn://a.b.c"
    assert below == ""


def test_models_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    sections, _ = shown(capsys, "in=http out=mocker org/one org/two --max-models 1")
    assert sections["Processor"]["budget"] == {"models": 1}
    assert {section["model"] for section in sections.values() if "model" in section} == {"org/one", "org/two"}
