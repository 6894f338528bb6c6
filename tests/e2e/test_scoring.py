"""Prompts that are scored over HTTP by llama.cpp, in the form in which lm-evaluation-harness asks."""

import importlib.util
from typing import Any

import pytest

from .scoring import score

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip("needs the extra llama_cpp", allow_module_level=True)

pytestmark = pytest.mark.engine


def test_the_request_of_lm_evaluation_harness(machine: Any) -> None:
    (machine.folder / "args.json").write_text('{"n_threads": 1, "n_parallel": 8, "n_ctx": 4096}')
    words = ("in=http", "out=llama_cpp", "sample.gguf", "--extra-engine-args", "args.json", "--http-port", 0)
    command = machine.start("dynamo-run", *words, OMP_NUM_THREADS="1")
    url = command.ready()
    machine.until(lambda: machine.serves(url))
    score(machine, url)
    command.end()
