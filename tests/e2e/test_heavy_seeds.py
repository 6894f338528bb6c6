"""Sampled answers of a worker that is killed, where the engine's noise is keyed by seed and position."""

import dataclasses
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .test_heavy import SGLANG, installed, workers

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
ENV = {
    "PYTHONPATH": f"{ROOT / 'tests/engine/sglang/on_cpu'}:{ROOT}",
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}


def test_seeded_answers_of_sglang_go_on_with_the_same_text(machine: Any) -> None:
    # In half precision logits that are computed as a prompt differ in the third digit, and so may a token.
    arguments = {"enable_deterministic_inference": True, "dtype": "float32"}
    command, url = workers(machine, dataclasses.replace(installed(SGLANG), arguments=arguments), **ENV)
    fields = {"temperature": 1.2, "max_tokens": 400, "ignore_eos": True}
    asked = [(text, seed) for text in ("Who are you?", "Tell me a story.", "x y z") for seed in (1, 2)]
    with ThreadPoolExecutor(len(asked)) as pool:
        streams = list(pool.map(lambda one: machine.stream(url, one[0], seed=one[1], **fields), asked))
    os.kill(machine.ps("Worker")[0]["pid"], signal.SIGKILL)
    for stream in streams:
        stream.read()
        assert (stream.finish, stream.done, stream.error) == ("length", True, None)
    machine.until(lambda: "moves to another instance" in command.err)
    whole = [machine.stream(url, text, seed=seed, **fields).read().text for text, seed in asked]
    assert len({*whole}) == len(whole), "each seed has noise of its own"
    assert [stream.text for stream in streams] == whole
